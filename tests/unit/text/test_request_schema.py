"""The schema of requests against what reads them: they are of one opinion, about the same cases."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: JSON documents

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nri_rdma.errors import RequestError
from nri_rdma.model.request import Scope
from nri_rdma.text.forms import names_of
from nri_rdma.text.nodes import Node, Scalar, node_of
from nri_rdma.text.requests import REQUEST_KEYS, read_granted, read_parameters, read_requests
from nri_rdma.text.yaml import read_yaml
from tests.unit.rigs.json_schema import complaints
from tests.unit.text.request_cases import FULL, REFUSED

PROJECT = Path(__file__).resolve().parents[3]
SCHEMA: dict[str, Any] = json.loads((PROJECT / "api/request.schema.json").read_text())
PAGES = (PROJECT / "docs/requests.md", PROJECT / "docs/cdi.md")
DEFS = SCHEMA["$defs"]
OF_POD = DEFS["request"] | {
    "properties": {
        name: form
        for name, form in DEFS["request"]["properties"].items()
        if name in DEFS["pod"]["propertyNames"]["enum"]
    }
}
"""What a request of a pod's annotation may have."""
CHOOSE = ("pool", "match", "count", "perGPU", "containers", "align", "gpus")

BEYOND = {
    "{align: {to: none, strict: true}}",
    "{gpus: ['1b:00.0', '0000:1b:00.0']}",  # two spellings of one
    "{interface: {name: .}}",
    "{interface: {name: ..}}",
    "{interface: {name: lo}}",
    "{interface: {name: all}}",
    "{interface: {name: rdma%d%d}}",
    "{interface: {name: rdma%s}}",
    "{interface: {name: 'rdma%'}}",
    "{memlock: 0.3Ki}",
    "{memlock: 0Gi}",
    "{memlock: 8Ei}",
    "{mode: shared, interface: {mtu: 9000}}",
    "{mode: shared, isolation: hard}",
    "{prove: true, devices: [umad]}",
    *(text for text, _ in REFUSED if "addresses" in text or ("count" in text and "name" in text)),
}
"""What depends on several keys, or is written well and stands for nothing: only the reader refuses it."""


def as_json(node: Node | None) -> object:
    """What an editor takes the text for."""
    match node:
        case dict():
            return {key: as_json(item) for key, item in node.items()}
        case list():
            return [as_json(item) for item in node]
        case Scalar():
            return node.value
    return None


def read(value: object) -> None:
    read_requests(json.dumps(value), "pod", Scope(), own=False)


@pytest.mark.parametrize(("text", "where"), REFUSED)
def test_what_the_reader_refuses_the_schema_refuses_unless_it_cannot_know(text: str, where: str) -> None:
    if text not in BEYOND:
        assert complaints(as_json(read_yaml(text, "pod")), SCHEMA), where


def test_the_schema_knows_most_of_what_is_wrong() -> None:
    assert len(BEYOND & {text for text, _ in REFUSED}) < len(REFUSED) / 2


@pytest.mark.parametrize(
    "value", [None, 2, "fast", {}, [], FULL, [FULL], {"match": {"vendor": 8086}}, {"align": "numa"}, {"count": "all"}]
)
def test_what_the_reader_takes_the_schema_takes(value: object) -> None:
    read(value)
    assert complaints(value, SCHEMA) == []


@pytest.mark.parametrize("key", FULL)
def test_a_place_refuses_a_key_in_reader_and_schema_alike(key: str) -> None:
    value = {key: FULL[key]} if key != "isolation" else {key: FULL[key], "mode": "exclusive"}
    if key in {"routes", "neighbors"}:  # which device they are for is known by the addresses
        value["interface"] = FULL["interface"]
    places: dict[str, Callable[[], object]] = {
        "pod": lambda: read_requests(json.dumps(value | {"count": 2}), "pod", Scope(), own=False),
        "container": lambda: read_requests(json.dumps(value | {"count": 2}), "pod", Scope(), own=True),
        "granted": lambda: read_granted(json.dumps(value), "spec", "nic", 2),
        "parameters": lambda: read_parameters(node_of(value), "claim", 2),
    }
    for place, reads in places.items():
        try:
            reads()
        except RequestError:
            assert complaints(value, DEFS[place], SCHEMA), place
        else:
            assert complaints(value, DEFS[place], SCHEMA) == [], place


def test_who_has_chosen_the_devices_says_how_they_are_given_and_not_which() -> None:
    for place, others in (("granted", set()), ("parameters", {"adminAccess"})):
        allowed = DEFS[place]["propertyNames"]["enum"]
        assert set(names_of(REQUEST_KEYS)) - set(allowed) == {*CHOOSE, *others}
    words = f"{', '.join(f'`{key}`' for key in CHOOSE[:-1])} and `{CHOOSE[-1]}`"
    lacking = [page.name for page in PAGES if words not in " ".join(page.read_text().split())]
    assert lacking == [], f"write the keys that choose devices on these pages of docs/ as: {words}"


@pytest.mark.parametrize(("key", "form"), OF_POD["properties"].items())
def test_a_key_with_its_default_reads_as_without(key: str, form: dict[str, Any]) -> None:
    if "default" in form:
        assert read_requests(json.dumps({key: form["default"]}), "pod", Scope(), own=False) == read_requests(
            "{}", "pod", Scope(), own=False
        )


def _values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema takes."""
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(_values, schema["anyOf"]))
    match schema["type"]:
        case "object":
            if "properties" not in schema:
                return st.dictionaries(st.sampled_from(_WORDS), _values(schema["additionalProperties"]), max_size=2)
            forms = schema["properties"]
            keys = st.sets(st.sampled_from(sorted(forms)), max_size=2)
            return keys.flatmap(lambda some: st.fixed_dictionaries({key: _values(forms[key]) for key in sorted(some)}))
        case "array":
            return st.lists(_values(schema["items"]), max_size=3)
        case "boolean":
            return st.booleans()
        case "string":
            return st.sampled_from(_WORDS) | st.from_regex(schema.get("pattern", ".*"), fullmatch=True)
    return st.integers(schema["minimum"] - 1, min(schema.get("maximum", 9999), 2**63) + 1)


_WORDS = ["a", "eth0", "x%d", "0000:3b:00.0", "3b:00.0", "mlx5_0", "10.0.0.2/24", "fd00::2/064", "15b3", "0x15b3", ""]


@settings(max_examples=300, deadline=None)
@given(_values(OF_POD))
def test_no_request_that_the_reader_takes_is_refused_by_the_schema(value: dict[str, Any]) -> None:
    try:
        read(value)
    except RequestError:
        event("refused")
        return
    event("taken")
    assert complaints(value, SCHEMA) == []
