"""A reader takes what its grammar allows, and says of everything else where it stands and what is allowed."""

from __future__ import annotations

import re
from enum import StrEnum

import pytest

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.nodes import Node
from nri_rdma.text.reading import (
    Reader,
    boolean,
    empty_or,
    list_of,
    mapping,
    matching,
    one_of,
    parsed,
    whole,
    word_or,
    written,
)
from nri_rdma.text.refusals import MAX_PROBLEMS, Errors, refused
from nri_rdma.text.yaml import read_yaml


class _Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


_LOWER = matching(re.compile("[a-z]+"), "write small letters")


def _node(text: str) -> Node:
    node = read_yaml(text, "HERE")
    assert node is not None
    return node


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (whole(1, 9), "1", 1),
        (whole(1, 9), "9", 9),
        (whole(1, 9), "0x9", 9),
        (boolean, "true", True),
        (boolean, "false", False),
        (_LOWER, "abc", "abc"),
        (_LOWER, "'true'", "true"),
        (one_of(_Colour), "red", _Colour.RED),
        (list_of(whole(1, 9)), "[3, 1]", (3, 1)),
        (parsed(float, "write a number"), "'1.5'", 1.5),
        (empty_or(_LOWER), "''", None),
        (empty_or(_LOWER), "abc", "abc"),
        (written("write a text"), "0x10", "0x10"),
        (word_or("all", None, whole(1, 9)), "all", None),
        (word_or("all", None, whole(1, 9)), "4", 4),
    ],
)
def test_what_the_grammar_allows_is_read(reader: Reader[object], text: str, value: object) -> None:
    assert reader(_node(text), "HERE") == value


@pytest.mark.parametrize(
    ("reader", "text", "where", "hint"),
    [
        (whole(1, 9), "0", "HERE", "write a whole number from 1 to 9"),
        (whole(1, 9), "10", "HERE", "write a whole number from 1 to 9"),
        (whole(0, 9), "true", "HERE", "write a whole number from 0 to 9"),
        (whole(1, 9), "1.5", "HERE", "write a whole number from 1 to 9"),
        (whole(1, 9), "'4'", "HERE", "write a whole number from 1 to 9"),
        (boolean, "yes", "HERE", "write true or false"),
        (boolean, "1", "HERE", "write true or false"),
        (_LOWER, "Abc", "HERE", "write small letters"),
        (_LOWER, "abc1", "HERE", "write small letters"),
        (_LOWER, "true", "HERE", "write small letters"),
        (one_of(_Colour), "Red", "HERE", "write one of red, blue"),
        (one_of(_Colour), "[red]", "HERE", "write one of red, blue"),
        (list_of(whole(1, 9)), "3", "HERE", "write [ ] around it"),
        (list_of(whole(1, 9)), "[]", "HERE", "leave the key out, or name at least one"),
        (list_of(whole(1, 9)), "[3, 0]", "HERE[1]", "write a whole number from 1 to 9"),
        (list_of(whole(1, 9)), "[3, 1, 3]", "HERE[2]", "name it once"),
        (parsed(float, "write a number"), "abc", "HERE", "write a number"),
        (parsed(lambda text: None, "write another"), "abc", "HERE", "write another"),
        (written("write a text"), "[abc]", "HERE", "write a text"),
        (matching(re.compile("a"), "write a", written("write a text")), "[a]", "HERE", "write a text"),
        (word_or("all", None, whole(1, 9)), "none", "HERE", "write a whole number from 1 to 9"),
    ],
)
def test_anything_else_is_refused_where_it_stands(reader: Reader[object], text: str, where: str, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        reader(_node(text), "HERE")
    assert (caught.value.code, caught.value.where, caught.value.hint) == (ErrorCode.ANNOTATION_VALUE, where, hint)


@pytest.mark.parametrize(
    ("text", "code", "hint"),
    [
        ("{Count: 3}", ErrorCode.ANNOTATION_UNKNOWN_KEY, "write count; the keys are count, name"),
        ("{zzz: 3}", ErrorCode.ANNOTATION_UNKNOWN_KEY, "the keys are count, name"),
        ("[count]", ErrorCode.ANNOTATION_VALUE, "write {key: value} with count, name"),
    ],
)
def test_what_is_no_mapping_of_known_keys_is_refused(text: str, code: ErrorCode, hint: str) -> None:
    with pytest.raises(RequestError) as caught:
        errors = Errors()
        mapping(_node(text), "HERE", ("count", "name"), errors)
        errors.refuse()
    assert (caught.value.code, caught.value.hint) == (code, hint)


def test_of_a_list_with_very_many_errors_the_rest_is_not_read() -> None:
    seen: list[str] = []

    def read(_node: Node, where: str) -> int:
        seen.append(where)
        raise refused(where, "it is wrong", "mend it")

    with pytest.raises(RequestError) as caught:
        list_of(read)(_node(f"[{'1, ' * 60}]"), "P")
    assert len(seen) == MAX_PROBLEMS == 1 + len(caught.value.others)
