"""Manifests are read as Kubernetes reads them, with the place of every key."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.placed_yaml import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_DOCUMENTS,
    MAX_NODES,
    Place,
    Placed,
    Value,
    Written,
    kubernetes_value,
    place_within,
    read_documents,
)


def only(text: str) -> Placed:
    (document,) = read_documents(text.encode())
    assert isinstance(document, Placed), document
    return document


def refusal(data: str | bytes) -> RequestError:
    (error,) = read_documents(data.encode() if isinstance(data, str) else data)
    assert isinstance(error, RequestError)
    return error


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("on", True),
        ("y", True),
        ("NO", False),
        ("nO", "nO"),
        ("~", None),
        ("", None),
        ("010", 8),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", 3),
        ("1_000", 1000),
        ("-3", -3),
        ("08", 8.0),
        ("14e4", 140_000.0),
        ("1.5", 1.5),
        (".5", 0.5),
        ("0000:10:00.0", "0000:10:00.0"),
        ("12:30:45", "12:30:45"),
        ("2001-13-01", "2001-13-01"),
        ("1.2.3", "1.2.3"),
        ("_1", "_1"),
        ("\u0663", "\u0663"),
        ("9" * 68, "9" * 68),
        ("-.inf", float("-inf")),
    ],
)
def test_a_word_is_what_kubernetes_takes_it_for(word: str, value: Value) -> None:
    assert kubernetes_value(word) == value
    assert type(kubernetes_value(word)) is type(value)


def test_what_is_quoted_is_text() -> None:
    assert only("a: 'on'\nb: \"1\"\nc: !!str 2\nd: |\n  3\n").value == {"a": "on", "b": "1", "c": "2", "d": "3\n"}


def test_every_key_and_entry_has_its_place() -> None:
    document = only("# a comment\na:\n  b: [x, {c: 1}]\n")
    assert document.places == {
        (): Place(2, 1),
        ("a",): Place(2, 1),
        ("a", "b"): Place(3, 3),
        ("a", "b", 0): Place(3, 7),
        ("a", "b", 1): Place(3, 10),
        ("a", "b", 1, "c"): Place(3, 11),
    }
    assert document.texts == {("a", "b", 0): Written("", Place(3, 7))}
    assert document.place_of(("a", "b", 1, "c", "d", 3)) == Place(3, 11)


def test_lines_are_those_of_the_whole_file() -> None:
    documents = read_documents(b"a: 1\n---\n# nothing\n---\nb:\n  c: 2\n--- {d: 3}\n")
    assert [it.value for it in documents if isinstance(it, Placed)] == [{"a": 1}, {"b": {"c": 2}}, {"d": 3}]
    assert [it.place_of(("b", "c")) for it in documents if isinstance(it, Placed)][1] == Place(6, 3)


def test_an_error_in_one_document_does_not_hide_the_others() -> None:
    first, second, third = read_documents(b"a: [\n---\nb: 1\n---\nc: 1\nc: 2\n")
    assert isinstance(first, RequestError)
    assert isinstance(second, Placed)
    assert isinstance(third, RequestError)
    assert (first.code, first.line, first.column) == (ErrorCode.MANIFEST_SYNTAX, 1, 5)
    assert (third.code, third.line, third.column) == (ErrorCode.MANIFEST_DUPLICATE_KEY, 6, 1)


def test_what_stands_before_the_first_separator_may_be_nothing() -> None:
    assert only("---\na: 1\n").place_of(("a",)) == Place(2, 1)


@pytest.mark.parametrize("text", ["", "\n", "# only this\n", "---\n", "---\n---\n...\n", "~\n", "\ufeff"])
def test_a_text_without_documents_has_none(text: str) -> None:
    assert read_documents(text.encode()) == ()


def test_aliases_and_merge_keys_stand_for_what_they_name() -> None:
    text = "base: &base {a: 1, b: 2}\nnew: {<<: *base, b: 3}\nlist: [*base]\nboth: {<<: [*base, {c: 4}]}\n"
    assert only(text).value == {
        "base": {"a": 1, "b": 2},
        "new": {"a": 1, "b": 3},
        "list": [{"a": 1, "b": 2}],
        "both": {"a": 1, "b": 2, "c": 4},
    }


def test_what_came_by_an_alias_is_placed_where_the_alias_is() -> None:
    assert only("a: &a {b: 1}\nc: *a\n").place_of(("c", "b")) == Place(2, 1)


@pytest.mark.parametrize(
    ("text", "code", "line", "column"),
    [
        ("a: {b\n\n", ErrorCode.MANIFEST_SYNTAX, 1, 6),
        ("a: 1\n b: 2\n", ErrorCode.MANIFEST_SYNTAX, 2, 3),
        ("a: {{ .Values.x }}\n", ErrorCode.MANIFEST_SYNTAX, 1, 5),
        ("a: 1\na: 2\n", ErrorCode.MANIFEST_DUPLICATE_KEY, 2, 1),
        ('{"a": {"b": 1,\n "b": 2}}', ErrorCode.MANIFEST_DUPLICATE_KEY, 2, 2),
        ("a: *b\n", ErrorCode.MANIFEST_SYNTAX, 1, 4),
        ("a: &a [*a]\n", ErrorCode.MANIFEST_SYNTAX, 1, 8),
        ("<<: 1\n", ErrorCode.MANIFEST_SYNTAX, 1, 1),
        ("a: !!python/object/apply:os.system [id]\n", ErrorCode.MANIFEST_SYNTAX, 1, 4),
        ("[a]: b\n", ErrorCode.MANIFEST_SYNTAX, 1, 1),
        ("a: 1\n...\nb: 2\n", ErrorCode.MANIFEST_SYNTAX, 3, 1),
        ("\0", ErrorCode.MANIFEST_SYNTAX, 1, 0),
        ("a:\n" + "- " * (MAX_DEPTH + 1) + "x\n", ErrorCode.MANIFEST_SIZE, 2, 2 * MAX_DEPTH - 1),
        ("[" * 900, ErrorCode.MANIFEST_SIZE, 1, MAX_DEPTH + 1),
        (f"[{'1,' * (MAX_NODES + 1)}]", ErrorCode.MANIFEST_SIZE, 1, 2 * MAX_NODES),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, code: ErrorCode, line: int, column: int) -> None:
    error = refusal(text)
    assert (error.code, error.line, error.column) == (code, line, column)
    assert error.hint


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 10_000, "- " * 10_000])
def test_what_is_nested_without_end_is_refused_by_whichever_bound_comes_first(text: str) -> None:
    error = refusal(text)
    assert (error.code, error.line) == (ErrorCode.MANIFEST_SIZE, 1)
    assert error.what == f"it is nested deeper than {MAX_DEPTH} levels"


def test_what_is_no_utf_8_is_refused_with_its_line() -> None:
    error = refusal(b"a: 1\nb: \xff\n")
    assert (error.code, error.line, error.hint) == (ErrorCode.MANIFEST_SYNTAX, 2, "save it as UTF-8")


def test_what_is_too_large_is_not_parsed() -> None:
    assert refusal(b"#" * (MAX_BYTES + 1)).code is ErrorCode.MANIFEST_SIZE


@pytest.mark.parametrize("text", ["a: 1\n---\n", "---\n", "a: [\n---\n"])
def test_more_documents_than_allowed_are_told_where_they_begin(text: str) -> None:
    start = time.process_time()
    *_, last = read_documents(text.encode() * (MAX_BYTES // len(text)))
    assert time.process_time() - start < 10
    assert isinstance(last, RequestError)
    assert (last.code, last.what) == (ErrorCode.MANIFEST_SIZE, f"there are more than {MAX_DOCUMENTS} documents")


def test_an_alias_counts_as_much_as_what_it_stands_for() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9))
    start = time.process_time()
    assert refusal(bomb).code is ErrorCode.MANIFEST_SIZE
    assert time.process_time() - start < 1


def test_a_list_of_many_pods_is_read_in_time() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "a", "env": [{"name": "b"}] * 20}]},
    }
    data = json.dumps({"kind": "List", "items": [pod] * 1000}).encode()
    start = time.process_time()
    (document,) = read_documents(data)
    assert isinstance(document, Placed)
    assert time.process_time() - start < 5


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(codec="ascii"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<:# -", max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), _JSON, min_size=1), st.sampled_from([None, 2, "\t"]))
def test_any_json_reads_as_json(value: object, indent: int | str | None) -> None:
    assert only(json.dumps(value, indent=indent)).value == value


@given(st.binary(max_size=100) | st.text("[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\0\x85\ufeff", max_size=80).map(str.encode))
def test_any_bytes_are_documents_and_refusals_with_a_next_step(data: bytes) -> None:
    for document in read_documents(data):
        if isinstance(document, RequestError):
            assert document.what
            assert document.hint
            assert document.line
        else:
            assert document.places[()]


# Texts within the text


@pytest.mark.parametrize(
    ("text", "inner", "outer"),
    [
        ("a:\n  b: |\n    x: 1\n    y: 2\n", Place(2, 4), Place(4, 8)),
        ("a:\n  b: |2-  # a comment\n\n      x: 1\n    y: 2\n", Place(3, 1), Place(5, 5)),
        ("a:\r\n  b: |\r\n    x: 1\r\n    y: 2\r\n", Place(2, 1), Place(4, 5)),
        ("a: {b: x y}\n", Place(1, 3), Place(1, 10)),
        ("a: {b: 'x y'}\n", Place(1, 3), Place(1, 11)),
        ('a: {b: "x y"}\n', Place(1, 3), Place(1, 11)),
        ('a: {b: "x\\ty"}\n', Place(1, 3), Place(1, 8)),
        ("a: {b: 'x''y'}\n", Place(1, 3), Place(1, 8)),
        ("a:\n  b: >\n    x\n    y\n", Place(1, 3), Place(2, 6)),
        ('a:\n  b: "x\n    y"\n', Place(1, 3), Place(2, 6)),
    ],
)
def test_a_place_in_a_text_is_one_in_the_file_or_where_the_text_begins(text: str, inner: Place, outer: Place) -> None:
    document = only(text)
    value = document.value
    assert isinstance(value, dict)
    assert isinstance(value["a"], dict)
    within = value["a"]["b"]
    assert isinstance(within, str)
    assert place_within(text.split("\n"), document.texts["a", "b"], within, inner) == outer


def test_a_key_has_no_tag_that_kubernetes_does_not_know() -> None:
    (refused,) = read_documents(b"kind: Pod\n!strange a: 1\n")
    assert isinstance(refused, RequestError)
    assert (refused.code, refused.what) == (ErrorCode.MANIFEST_SYNTAX, "the tag '!strange' is not allowed")
