"""Hostile YAML is read into plain nodes or refused."""

from __future__ import annotations

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.errors import ErrorCode, RequestError
from nri_rdma.text.nodes import CoreValue, Node, Scalar
from nri_rdma.text.yaml import MAX_BYTES, MAX_DEPTH, MAX_ENTRIES, read_yaml


def plain(node: Node | None) -> object:
    """The node as Python data."""
    if isinstance(node, list):
        return [plain(item) for item in node]
    if isinstance(node, dict):
        return {key: plain(item) for key, item in node.items()}
    return node.value if node is not None else "no document"


def refusal(text: str) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read_yaml(text, "HERE")
    return caught.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0000:10:00.0", "0000:10:00.0"),
        ("12:30:45", "12:30:45"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("010", 10),
        ("0o10", 8),
        ("0x10", 16),
        ("-3", -3),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        ("true", True),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("false", False),
        ("null", None),
        ("~", None),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("-.inf", float("-inf")),
        ("0b1", "0b1"),
        ("'true'", "true"),
        ('"1"', "1"),
        ("\u0663", "\u0663"),
    ],
)
def test_a_scalar_is_what_the_core_schema_of_yaml_1_2_says(text: str, value: CoreValue) -> None:
    node = read_yaml(text, "HERE")
    assert isinstance(node, Scalar)
    assert node.value == value
    assert type(node.value) is type(value)


def test_not_a_number_is_a_float() -> None:
    node = read_yaml(".nan", "HERE")
    assert isinstance(node, Scalar)
    assert node.value != node.value


def test_a_scalar_keeps_its_text() -> None:
    assert read_yaml("14e4", "HERE") == Scalar("14e4", True)


@pytest.mark.parametrize("text", ["", " \n ", "# only a comment\n", "\ufeff"])
def test_a_text_without_a_document_is_none(text: str) -> None:
    assert read_yaml(text, "HERE") is None


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"b":[true,null,"x"]}',
        '{\n\t"a":\t[1,\t2]\n}',
        '["\\/ \\u0041 \\n \\" \\\\"]',
        "[1.5, -2, 1e3]",
        "[]",
        "{}",
    ],
)
def test_json_reads_as_json(text: str) -> None:
    assert plain(read_yaml(text, "HERE")) == json.loads(text)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(codec="ascii"), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<:# -", max_size=5), inner, max_size=4),
    max_leaves=8,
).filter(
    lambda value: len(json.dumps(value)) < 2000 and json.dumps(value).count("[") + json.dumps(value).count("{") < 7
)


@given(_JSON, st.sampled_from([None, 2, "\t"]))
def test_any_json_reads_as_json(value: object, indent: int | str | None) -> None:
    assert plain(read_yaml(json.dumps(value, indent=indent), "HERE")) == value


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &x 1", ErrorCode.ANNOTATION_ALIAS),
        ("&x a: 1", ErrorCode.ANNOTATION_ALIAS),
        ("*x", ErrorCode.ANNOTATION_ALIAS),
        ("[*x]", ErrorCode.ANNOTATION_ALIAS),
        ("{*x : 1}", ErrorCode.ANNOTATION_ALIAS),
        ("!!str a", ErrorCode.ANNOTATION_ALIAS),
        ("! a", ErrorCode.ANNOTATION_ALIAS),
        ("!!python/object/apply:os.system [id]", ErrorCode.ANNOTATION_ALIAS),
        ("<<: {a: 1}", ErrorCode.ANNOTATION_ALIAS),
        ("a: 1\na: 2", ErrorCode.ANNOTATION_DUPLICATE_KEY),
        ('{"a": 1, a: 2}', ErrorCode.ANNOTATION_DUPLICATE_KEY),
        ('{"a": 1, "\\u0061": 2}', ErrorCode.ANNOTATION_DUPLICATE_KEY),
        ("? [a]\n: b", ErrorCode.ANNOTATION_SYNTAX),
        ("a\n---\nb", ErrorCode.ANNOTATION_SYNTAX),
        ("--- a\n...\n--- b", ErrorCode.ANNOTATION_SYNTAX),
        ("%YAML 1.1\n--- a", ErrorCode.ANNOTATION_SYNTAX),
        ("%TAG ! tag:x,2000:\n--- a", ErrorCode.ANNOTATION_SYNTAX),
        ("a: {b", ErrorCode.ANNOTATION_SYNTAX),
        ("a:\n\tb: 1", ErrorCode.ANNOTATION_SYNTAX),
        ("\0", ErrorCode.ANNOTATION_SYNTAX),
        ("\ud800", ErrorCode.ANNOTATION_SYNTAX),
        ("x" * 257, ErrorCode.ANNOTATION_SIZE),
        ("[" * 10_000, ErrorCode.ANNOTATION_SIZE),
        ("- " * 10_000, ErrorCode.ANNOTATION_SIZE),
        ("{a: " * 10_000, ErrorCode.ANNOTATION_SIZE),
        (f"[{'a, ' * 65}]", ErrorCode.ANNOTATION_SIZE),
        ("\n".join(f"k{number}: 1" for number in range(65)), ErrorCode.ANNOTATION_SIZE),
        (f"[{('[' + 'a, ' * 64 + '], ') * 64}]", ErrorCode.ANNOTATION_SIZE),
        (" " * (MAX_BYTES + 1), ErrorCode.ANNOTATION_SIZE),
        ("ä" * (MAX_BYTES // 2 + 1), ErrorCode.ANNOTATION_SIZE),
        ("\ud800" * MAX_BYTES, ErrorCode.ANNOTATION_SIZE),
    ],
)
def test_what_is_not_allowed_is_refused(text: str, code: ErrorCode) -> None:
    assert refusal(text).code is code


def test_the_limits_themselves_are_allowed() -> None:
    read_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH, "HERE")
    read_yaml(f"[{'a, ' * MAX_ENTRIES}]", "HERE")
    read_yaml("x" * 256, "HERE")
    read_yaml(" " * MAX_BYTES, "HERE")


def test_a_quoted_merge_key_is_a_key_like_any_other() -> None:
    assert plain(read_yaml('"<<": 1', "HERE")) == {"<<": 1}


def test_a_refusal_names_line_and_column() -> None:
    assert refusal("a: 1\n  \nb: 2\na: 3").where == "HERE line 4 column 1"


def test_a_syntax_error_names_line_and_column() -> None:
    assert refusal("- a\n- b: c: d").where == "HERE line 2 column 7"


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "[" * MAX_BYTES,
        "{a: " * (MAX_BYTES // 4),
        "[a," * (MAX_BYTES // 3),
        "? " * (MAX_BYTES // 2),
        "- " * (MAX_BYTES // 2),
        "a\n" * (MAX_BYTES // 2),
        '"' + "\\x41" * (MAX_BYTES // 4 - 1),
        "9" * MAX_BYTES,
        "#" * (1 << 20),
        "&a " * (MAX_BYTES // 3),
        "!" * MAX_BYTES,
        "|\n" + " \n" * (MAX_BYTES // 2 - 2),
    ],
)
def test_a_bomb_is_over_at_once(text: str) -> None:
    start = time.thread_time()
    with contextlib.suppress(RequestError):
        read_yaml(text, "HERE")
    assert time.thread_time() - start < 0.25


@given(st.text() | st.text("[]{}:,-?!&*#|>%@`'\" \n\tab01.~<\ud800\0\x85\ufeff", max_size=60))
def test_no_text_raises_anything_but_a_request_error(text: str) -> None:
    try:
        plain(read_yaml(text, "HERE"))
    except RequestError as error:
        assert error.where.startswith("HERE")


@pytest.mark.parametrize(("text", "what"), [("*a : 1", "an alias"), ("&a a: 1", "an anchor"), ("!!str a: 1", "a tag")])
def test_a_key_is_no_alias_and_has_neither_anchor_nor_tag(text: str, what: str) -> None:
    with pytest.raises(RequestError, match=f"{what} is not allowed") as caught:
        read_yaml(text, "HERE")
    assert caught.value.code is ErrorCode.ANNOTATION_ALIAS
