"""The fields of a CDI spec are read one by one, and what is wrong with any of them is reported."""

from __future__ import annotations

import re

import pytest

from nri_rdma.cdi.document import read_document
from nri_rdma.cdi.fields import (
    Fields,
    Place,
    empty_or,
    list_of,
    matching,
    non_empty,
    one_of,
    string,
    texts_by_key,
    whole,
)
from nri_rdma.cdi.problems import Problems
from nri_rdma.cdi.reading import parse
from nri_rdma.cdi.spec import (
    DeviceNode,
    NodeType,
)
from nri_rdma.errors import ErrorCode
from tests.unit.cdi.made_specs import node_with

HEAD = "cdiVersion: 1.1.0\nkind: ve/cl\n"


def test_a_null_is_a_field_that_is_not_there() -> None:
    assert node_with("type: ~, major: null, uid: , hostPath: NULL") == DeviceNode(path="/dev/a")


def test_a_text_may_look_like_something_else() -> None:
    edits = parse(
        f"{HEAD}devices: [{{name: 10, annotations: {{1: yes}}, containerEdits: {{env: [A=1]}}}}]".encode(), "F"
    )
    assert (edits.devices[0].name, edits.devices[0].annotations) == ("10", (("1", "yes"),))


# Readers alone


def _fields(text: str, *known: str) -> tuple[Fields, Problems]:
    problems = Problems("FILE")
    node = read_document(text.encode(), problems)
    assert node is not None
    return Fields(node, Place(problems), known), problems


def _refused(problems: Problems) -> list[tuple[str, int]]:
    return [(problem.path, problem.line) for problem in problems.all]


def test_a_field_is_read_and_one_that_is_not_there_is_the_default() -> None:
    fields, problems = _fields("a: 7\nb:\nc: ''\n", "a", "b", "c", "d")
    assert [fields.read(key, string, "none") for key in ("a", "b", "c", "d")] == ["7", "none", "", "none"]
    assert (fields.line("c"), fields.line("d")) == (3, 1)
    assert not problems


def test_a_required_field_that_is_not_there_is_a_problem_with_its_hint() -> None:
    fields, problems = _fields("x: 1\na: ~\n", "x", "a", "b")
    assert fields.required("x", string, "", "write x") == "1"
    assert [fields.required(key, string, "instead", f"write {key}") for key in ("a", "b")] == ["instead"] * 2
    assert sorted(_refused(problems)) == [("a", 2), ("b", 1)]
    assert {problem.hint for problem in problems.all} == {"write a", "write b"}


def test_an_unknown_field_is_a_problem_that_names_the_nearest_one() -> None:
    fields, problems = _fields("kind: ve/cl\ndevces: []\n", "kind", "devices")
    assert fields.read("kind", string, "") == "ve/cl"
    (problem,) = problems.all
    assert (problem.code, problem.path, problem.line) == (ErrorCode.CDI_UNKNOWN_FIELD, "devces", 2)
    assert "devices" in problem.hint


def test_one_look_finds_every_entry_that_is_wrong() -> None:
    fields, problems = _fields("a: [1, x, 3,\n 9, ~, 2]\n", "a")
    assert fields.read("a", list_of(whole(1, 3)), ()) == (1, 3, 2)
    assert _refused(problems) == [("a[1]", 1), ("a[3]", 2), ("a[4]", 2)]


@pytest.mark.parametrize("number", [0, 1, 3, 4])
def test_both_bounds_of_a_number_are_allowed(number: int) -> None:
    fields, problems = _fields(f"a: {number}\n", "a")
    read = fields.read("a", whole(1, 3), None)
    assert (read, len(problems)) == ((number, 0) if number in {1, 3} else (None, 1))


def test_a_pattern_matches_the_whole_text() -> None:
    fields, problems = _fields("a: abc\nb: abcd\nc: xabc\n", "a", "b", "c")
    found = [fields.read(key, matching(re.compile("abc"), "write abc"), None) for key in ("a", "b", "c")]
    assert (found, _refused(problems)) == (["abc", None, None], [("b", 2), ("c", 3)])


def test_an_empty_text_is_none_where_it_may_be_empty_and_refused_where_not() -> None:
    fields, problems = _fields("a: ''\nb: c\nd: ''\n", "a", "b", "d")
    assert [fields.read(key, empty_or(one_of(NodeType)), "default") for key in ("a", "b")] == [None, "c"]
    assert fields.read("d", non_empty, None) is None
    assert _refused(problems) == [("d", 3)]


def test_texts_by_key_keep_their_order_and_a_null_is_an_empty_one() -> None:
    fields, problems = _fields("a: {z: 1, b: , c: [x]}\n", "a")
    assert fields.read("a", texts_by_key, ()) == (("z", "1"), ("b", ""), ("c", ""))
    assert _refused(problems) == [("a.c", 1)]


@pytest.mark.parametrize(
    ("text", "words"), [("[]", "a list"), ("{}", "a mapping"), ("''", "''"), ("x", "'x'"), ("!!str", "''")]
)
def test_what_is_no_number_is_named_as_it_stands(text: str, words: str) -> None:
    fields, problems = _fields(f"a: {text}\n", "a")
    fields.read("a", whole(1, 3), None)
    (problem,) = problems.all
    assert problem.what.startswith(words)
    assert ("in quotes" in problem.what) == (text in {"''", "!!str"})
    assert problem.hint == "write a whole number from 1 to 3"
