"""A declared key is read, described in a schema, and has its default from the field that it fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from nri_rdma.errors import RequestError
from nri_rdma.model.device import CharKind
from nri_rdma.text.forms import (
    FLAG,
    Form,
    Key,
    any_of,
    default_of,
    number,
    number_or,
    one_or_more,
    read_keys,
    schema_of,
    some,
    some_of,
    table,
    up_to,
    word_of,
)
from nri_rdma.text.nodes import Node, node_of
from nri_rdma.text.reading import Reader, list_of
from nri_rdma.text.refusals import each_of, refused
from nri_rdma.text.yaml import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """What the keys below fill."""

    lanes: int = 4
    is_open: bool = False
    kinds: frozenset[CharKind] = frozenset({CharKind.RDMA_CM, CharKind.UVERBS})
    note: str | None = None
    numbers: tuple[int, ...] = field(default_factory=tuple)


def _one_per_device(count: int | None) -> Reader[tuple[int, ...]]:
    def read(node: Node, where: str) -> tuple[int, ...]:
        found = list_of(number(0, 9).read)(node, where)
        assert len(found) == count
        return found

    return read


KEYS = (
    Key("lanes", "lanes", number(1, 8), "Lanes", unit="pairs"),
    Key("open", "is_open", FLAG, "Whether it is open"),
    Key("kinds", "kinds", some_of(CharKind), "Character devices"),
    Key("numbers", "numbers", Form(_one_per_device(1), {"type": "array"}, read_for=_one_per_device), "Numbers"),
)
RAIL = table(Rail, KEYS)


def test_a_mapping_becomes_the_value_whose_fields_its_keys_fill() -> None:
    assert RAIL.read(node_of({"open": True, "numbers": [7]}), "x") == Rail(is_open=True, numbers=(7,))


def test_a_form_within_a_mapping_reads_for_the_number_of_devices() -> None:
    assert RAIL.read_for is not None
    assert RAIL.read_for(2)(node_of({"numbers": [7, 8]}), "x") == Rail(numbers=(7, 8))


def test_values_are_read_in_the_order_of_the_keys_not_of_the_text() -> None:
    with pytest.raises(RequestError) as caught:
        read_keys(node_of({"kinds": [], "open": 1, "lanes": 9}), "x", KEYS)
    assert caught.value.where == "x.lanes"


def test_a_list_may_have_as_many_values_as_the_most_and_no_more() -> None:
    form = up_to(2, number(0, 9))
    assert form.read(node_of([1, 2]), "x") == (1, 2)
    with pytest.raises(RequestError, match="there are 3 entries in it"):
        form.read(node_of([1, 2, 3]), "x")


def test_an_unknown_key_is_refused_before_any_value_is_read() -> None:
    with pytest.raises(RequestError) as caught:
        read_keys(node_of({"lanes": 9, "lane": 1}), "x", KEYS)
    assert caught.value.hint == "write lanes; the keys are lanes, open, kinds, numbers"


def test_a_key_that_is_needed_is_asked_for_beside_what_else_is_wrong() -> None:
    keys = (replace(KEYS[0], required="write lanes"), KEYS[1])
    assert schema_of(keys)["required"] == ["lanes"]
    with pytest.raises(RequestError) as caught:
        read_keys(node_of({"open": 1}), "x", keys)
    assert [(it.where, it.key, it.hint) for it in each_of(caught.value)] == [
        ("x", "lanes", "write lanes"),
        ("x.open", "", "write true or false"),
    ]


def test_what_does_not_fit_together_is_looked_for_when_every_value_can_be_read() -> None:
    def misfits(fields: Mapping[str, object], where: str) -> Iterator[RequestError]:
        yield refused(where, f"{fields['lanes']} is odd", "write an even number")

    form = table(Rail, KEYS, misfits=misfits)
    for value, what in (({"lanes": 3}, "3 is odd"), ({"lanes": 9}, "'9' is not allowed")):
        with pytest.raises(RequestError) as caught:
            form.read(node_of(value), "x")
        assert (caught.value.what, caught.value.others) == (what, ())


def test_a_schema_has_the_text_the_unit_and_the_fields_default() -> None:
    assert schema_of(KEYS[:2], Rail) == {
        "type": "object",
        "properties": {
            "lanes": {"description": "Lanes (pairs)", "type": "integer", "minimum": 1, "maximum": 8, "default": 4},
            "open": {"description": "Whether it is open", "type": "boolean", "default": False},
        },
        "additionalProperties": False,
    }


def test_a_default_is_told_as_people_write_it_or_not_at_all() -> None:
    assert [default_of(key, Rail) for key in KEYS] == [4, False, ["uverbs", "rdma_cm"], None]
    assert default_of(Key("note", "note", FLAG, ""), Rail) is None
    assert default_of(KEYS[0], None) is None


@pytest.mark.parametrize(
    ("form", "value", "read"),
    [
        (one_or_more(number(1, 2)), 1, (1,)),
        (one_or_more(number(1, 2)), [2, 1], (2, 1)),
        (any_of(word_of(CharKind)), [], frozenset()),
        (any_of(word_of(CharKind)), ["umad"], frozenset({CharKind.UMAD})),
        (number_or({"all": None}, number(1, 2)), "all", None),
        (number_or({"all": None}, number(1, 2)), 2, 2),
    ],
)
def test_forms_are_made_of_forms(form: Form, value: object, read: object) -> None:
    assert form.read(node_of(value), "x") == read


@pytest.mark.parametrize("form", [one_or_more(number(1, 2)), some_of(CharKind)])
def test_an_empty_list_is_refused_where_one_is_needed(form: Form) -> None:
    with pytest.raises(RequestError):
        form.read([], "x")


def test_the_schema_of_a_list_refuses_what_is_there_twice() -> None:
    items = {"type": "integer", "minimum": 0, "maximum": 9}
    once = {"type": "array", "items": items, "uniqueItems": True}
    assert any_of(number(0, 9)).schema == once
    assert some(number(0, 9)).schema == {**once, "minItems": 1}


@pytest.mark.parametrize(("text", "value"), [("[]", frozenset()), ("[3, 1]", frozenset({1, 3}))])
def test_a_list_that_may_be_empty_is_a_set(text: str, value: frozenset[int]) -> None:
    node = read_yaml(text, "HERE")
    assert node is not None
    assert any_of(number(0, 9)).read(node, "HERE") == value
