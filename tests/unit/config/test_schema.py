"""The schema and the page of the configuration against what reads it: neither drifts, and they are of one opinion."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any  # Any: JSON documents

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from nri_rdma.config.settings import Document, Settings, load
from nri_rdma.errors import SettingError
from tests.unit.rigs.json_schema import complaints

PROJECT = Path(__file__).resolve().parents[3]
_BLOCK = re.compile(r"```toml\n(.*?)```", re.DOTALL)
PAGE = PROJECT / "docs/configuration.md"
EXAMPLES = {
    **{f"example {number} of the page": text for number, text in enumerate(_BLOCK.findall(PAGE.read_text()))},
    **{path.name: path.read_text() for path in sorted((PROJECT / "docs/examples").glob("*.toml"))},
}
SCHEMA: dict[str, Any] = json.loads((PROJECT / "api/config.schema.json").read_text())


@pytest.mark.parametrize("text", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_every_example_is_taken_by_daemon_and_schema(text: str) -> None:
    loaded = load({}, {}, Document(name="FILE", text=text))
    assert loaded.settings != Settings()
    assert complaints(tomllib.loads(text), SCHEMA) == []


def test_the_page_has_every_key() -> None:
    page = PAGE.read_text()
    for table in ("pool", "rule", "selector"):
        for key in SCHEMA["$defs"][table]["properties"]:
            assert f"| `{key}` |" in page


@pytest.mark.parametrize(
    "text",
    [
        "log_levle = 1",
        'log_level = "loud"',
        'plugin_index = "9"',
        "memlock = 0",
        "tracing = 1",
        "[pools.a]",
        "[pools]",
        '[pools.1]\nmodes = ["shared"]',
        "[pools.a]\nmodes = []",
        '[pools.a]\nmodes = ["shared", "shared"]',
        '[pools.a]\nmodes = ["shared"]\nselect = {}',
        '[pools.a]\nmodes = ["shared"]\nselect = []',
        '[pools.a]\nmodes = ["shared"]\nselect.vendor = 5555',
        '[pools.a]\nmodes = ["shared"]\nselect.minSpeedGbps = 0',
        '[pools.a]\nmodes = ["shared"]\nlimits.hcaHandle = 1',
        "rules = []",
        "[[rules]]\nnamespace = []",
        '[[rules]]\nnamespaces = ["A"]',
        "[[rules]]\npodLabels = {}",
        '[[rules]]\ninterface = ["ipam"]',
    ],
)
def test_what_the_schema_refuses_the_daemon_refuses_too(text: str) -> None:
    assert complaints(tomllib.loads(text), SCHEMA)
    with pytest.raises(SettingError):
        load({}, {}, Document(name="FILE", text=text))


def _values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a schema takes, and some that it does not."""
    if "$ref" in schema:
        return _values(SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "anyOf" in schema:
        return st.one_of(*map(_values, schema["anyOf"]))
    match schema["type"]:
        case "object" if "properties" in schema:
            required = {key: _values(schema["properties"][key]) for key in schema.get("required", ())}
            keys = {key: _values(form) for key, form in schema["properties"].items() if key not in required}
            return st.fixed_dictionaries(required, optional=keys)
        case "object":
            return st.dictionaries(st.sampled_from(["a", "b.c/d", "x y"]), _values(schema["additionalProperties"]))
        case "array":
            return st.lists(_values(schema["items"]), max_size=3)
        case "integer":
            return st.integers(schema["minimum"], min(schema["maximum"], 2**63))
        case "number":
            return st.floats(schema["minimum"], schema["maximum"])
        case "boolean":
            return st.booleans()
    return st.from_regex(schema["pattern"]) if "pattern" in schema else st.sampled_from(_WORDS)


_WORDS = ["ens1f0", "ens1f0#0-3,7", "0000:3b:00.0", "pci0000:3a", "0000:3b:00.0#1", "mlx5_0", ""]


def _some_keys(table: str) -> st.SearchStrategy[dict[str, Any]]:
    """One or two keys of a table: of more, one is nearly always wrong."""
    forms = SCHEMA["$defs"][table]["properties"]
    keys = st.sets(st.sampled_from(sorted(forms)), min_size=1, max_size=2)
    return keys.flatmap(lambda chosen: st.fixed_dictionaries({key: _values(forms[key]) for key in sorted(chosen)}))


_TABLES = st.one_of(
    _some_keys("rule").map(lambda rule: {"rules": [rule]}),
    _some_keys("selector").map(lambda it: {"pools": {"a": {"modes": ["shared"], "select": it}}}),
    _some_keys("pool").map(lambda pool: {"pools": {"a": {"modes": ["exclusive"], **pool}}}),
)


@settings(max_examples=300, deadline=None)
@given(_TABLES)
def test_what_the_daemon_takes_the_schema_takes(table: dict[str, Any]) -> None:
    text = "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())
    assert tomllib.loads(text) == table
    try:
        load({}, {}, Document(name="FILE", text=text))
    except SettingError:
        event("refused")
        return
    event("taken")
    assert complaints(table, SCHEMA) == []


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_toml(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value).replace("\x7f", "\\u007f")
