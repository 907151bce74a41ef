"""Nodes keep what was written, and where."""

from __future__ import annotations

import pytest

from nri_rdma.text.nodes import LinedList, LinedMapping, Node, Scalar, is_missing, line_of, node_of, shown


def test_a_scalar_is_what_its_text_says_unless_it_is_quoted() -> None:
    words = ("7", "0x10", "true", "~", "7.0")
    assert [(it.value, it.number, it.truth) for it in (Scalar(word, plain=True) for word in words)] == [
        (7, 7, None),
        (16, 16, None),
        (True, None, True),
        (None, None, None),
        (7.0, None, None),
    ]
    assert [(it.value, it.number, it.truth) for it in (Scalar(word, plain=False) for word in words)] == [
        (word, None, None) for word in words
    ]


def test_a_null_is_a_value_like_others_unless_the_language_says_otherwise() -> None:
    assert not is_missing(Scalar("", plain=True))


def test_nodes_know_their_lines_where_the_text_has_lines() -> None:
    inner = LinedList([Scalar("x", plain=True, line=4)], 3)
    node: Node = LinedMapping({"a": inner, "": inner}, 1, {"a": 2, "": 5})
    assert (line_of(node), line_of(node, "a"), line_of(node, ""), line_of(node, "b")) == (1, 2, 5, 1)
    assert (line_of(inner), line_of(inner[0])) == (3, 4)
    assert (line_of([]), line_of({}), line_of(Scalar("x", plain=True))) == (0, 0, 0)


@pytest.mark.parametrize(
    ("node", "words"),
    [([], "a list"), ({}, "a mapping"), (Scalar("", plain=True), "an empty value"), (Scalar("", plain=False), "''")],
)
def test_a_node_is_shown_in_a_sentence(node: Node, words: str) -> None:
    assert shown(node) == words


def test_a_value_of_toml_keeps_its_kind() -> None:
    node = node_of({"a": [1, "1", True, None]})
    words = [("1", True), ("1", False), ("true", True), ("null", True)]
    assert node == {"a": [Scalar(text, plain=plain) for text, plain in words]}
