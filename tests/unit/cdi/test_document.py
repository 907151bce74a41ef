"""The text of a CDI spec becomes nodes: what YAML means, and what it may cost."""

from __future__ import annotations

import json
import time

import pytest

from nri_rdma.cdi.document import MAX_BYTES, MAX_KEY, MAX_NODES, MAX_TEXT, read_document
from nri_rdma.cdi.reading import inspect, parse
from nri_rdma.cdi.scalars import Text
from nri_rdma.cdi.spec import (
    Edits,
    Mount,
    Version,
)
from nri_rdma.errors import CdiError, ErrorCode, RequestError
from nri_rdma.text.nodes import Node, line_of
from nri_rdma.text.refusals import Errors

HEAD = "cdiVersion: 1.1.0\nkind: ve/cl\n"


def test_aliases_and_merge_keys_are_read_as_runtimes_do() -> None:
    text = f"""{HEAD}containerEdits: &common {{env: [A=1], mounts: []}}
devices:
- {{name: a, containerEdits: *common}}
- name: b
  containerEdits:
    <<: [*common, {{additionalGids: [1], env: [C=3]}}]
    mounts: [{{hostPath: /a, containerPath: /b}}]
"""
    a, b = parse(text.encode(), "FILE").devices
    assert a.edits == Edits(env=("A=1",))
    assert b.edits == Edits(env=("A=1",), additional_gids=(1,), mounts=(Mount(host_path="/a", container_path="/b"),))


def test_a_leading_byte_order_mark_and_a_directive_are_no_content() -> None:
    text = f"\ufeff%YAML 1.1\n---\n{HEAD}devices: [{{name: a, containerEdits: {{env: [A=1]}}}}]\n..."
    assert parse(text.encode(), "FILE").version is Version.V1_1_0


@pytest.mark.parametrize(
    "data",
    [
        b"[" * MAX_BYTES,
        b"- " * (MAX_BYTES // 2),
        b"? " * (MAX_BYTES // 2),
        b"{a: " * (MAX_BYTES // 4),
        b"&a " * (MAX_BYTES // 3),
        b"a: &a [x]\n"
        + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 50)) for c in range(98, 122)),
        b"m: &m {a: 1}\nn: {<<: [" + b"*m," * 300_000 + b"]}",
        (HEAD + "devices: [" + "a," * (MAX_BYTES // 3) + "]").encode(),
        (HEAD + "annotations: {" + "a: 1," * (MAX_NODES // 2 - 10) + "}").encode(),
        (HEAD + "devices: '" + "x" * (MAX_BYTES - 100) + "'").encode(),
        b"#" * MAX_BYTES,
        b"\0" * MAX_BYTES,
        b"\xff" * MAX_BYTES,
        b"9" * MAX_BYTES,
        b"a" * (MAX_BYTES + 1),
    ],
)
def test_a_bomb_is_over_soon(data: bytes) -> None:
    start = time.process_time()
    assert inspect(data, "FILE").spec is None
    assert time.process_time() - start < 1.5


def test_the_largest_allowed_is_read_soon() -> None:
    """Two thousand devices; the bound on values is what takes longest to reach."""
    made = [{"name": f"a{number}", "containerEdits": {"deviceNodes": [{"path": "/a"}]}} for number in range(2000)]
    data = json.dumps({"cdiVersion": "0.3.0", "kind": "ve/cl", "devices": made}).encode()
    start = time.process_time()
    assert len(parse(data, "FILE").devices) == 2000
    assert time.process_time() - start < 1.5


def read(text: str, errors: Errors | None = None) -> Node | None:
    return read_document(text.encode(), Errors() if errors is None else errors)


def test_a_node_knows_its_line_and_whether_it_was_quoted() -> None:
    node = read("a: 1\nb:\n- '1'\n")
    assert isinstance(node, dict)
    assert node == {"a": Text("1", plain=True, line=1), "b": [Text("1", plain=False, line=3)]}
    assert (line_of(node), line_of(node, "b"), line_of(node["b"])) == (1, 2, 3)


def test_a_text_without_a_document_has_no_node() -> None:
    assert read("# a comment\n") is None


def test_of_a_key_that_is_there_twice_the_last_one_counts_and_the_problem_is_kept() -> None:
    errors = Errors()
    assert read("a: 1\na: 2\n", errors) == {"a": Text("2", plain=True, line=2)}
    assert [(error.code, error.line) for error in errors.kept] == [(ErrorCode.CDI_DUPLICATE_KEY, 2)]


def test_a_second_merge_key_is_one_key_twice_and_a_quoted_one_beside_it_is_not() -> None:
    errors = Errors()
    read("<<: {a: 1}\n'<<': 1\n", errors)
    assert not errors
    read("<<: {a: 1}\n<<: {b: 2}\n", errors)
    assert [(error.code, error.line) for error in errors.kept] == [(ErrorCode.CDI_DUPLICATE_KEY, 2)]


def test_a_merged_key_comes_after_the_own_ones_and_keeps_its_line() -> None:
    node = read("a: &a {x: 1}\nb:\n  y: 2\n  <<: *a\n")
    assert isinstance(node, dict)
    merged = node["b"]
    assert isinstance(merged, dict)
    assert [(key, line_of(merged, key)) for key in merged] == [("y", 3), ("x", 1)]


@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"a: b\nc: \xff\n", ErrorCode.CDI_SYNTAX, 2),
        (b"a: [b\n", ErrorCode.CDI_SYNTAX, 2),
        (b"a: 1\n---\nb: 1\n", ErrorCode.CDI_SYNTAX, 2),
        (b"a: !!int 5\n", ErrorCode.CDI_SYNTAX, 1),
        (b"a: 1\n!!int 5: b\n", ErrorCode.CDI_SYNTAX, 2),
        (b"#" * (1 << 20) + b"#", ErrorCode.CDI_SIZE, 0),
    ],
    ids=["no UTF-8", "an open bracket", "a second document", "a tag", "a tag of a key", "a byte more than 1 MiB"],
)
def test_what_readers_take_differently_is_refused_with_its_line(data: bytes, code: ErrorCode, line: int) -> None:
    with pytest.raises(RequestError) as caught:
        read_document(data, Errors())
    assert (caught.value.code, caught.value.line) == (code, line)


@pytest.mark.parametrize("second", ["---\na: 1", "---\n{", "---", "--- []", "...\n}", "...\n%BAD", "...\na: b: c"])
def test_a_second_document_is_refused_whatever_it_is(second: str) -> None:
    """A runtime reads the first one only, and does not even look whether the second is one."""
    with pytest.raises(CdiError, match="something follows the first document"):
        parse(f"{HEAD}devices: []\n{second}".encode(), "FILE")


def test_behind_a_bracket_that_was_closed_a_word_may_have_a_question_mark() -> None:
    with pytest.raises(CdiError, match="put it in quotes"):
        parse(f"{HEAD}devices: [{{name: a, containerEdits: {{mounts: [], env: [A=x?y]}}}}]".encode(), "FILE")
    closed = f"{HEAD}annotations: {{}}\ndevices:\n- name: a\n  containerEdits:\n    mounts: []\n    env:\n    - A=x?y\n"
    (device,) = parse(closed.encode(), "FILE").devices
    assert device.edits == Edits(env=("A=x?y",))


def refused(text: str) -> str:
    """Read a text that is refused, and return why."""
    with pytest.raises(RequestError) as caught:
        read_document(text.encode(), Errors())
    return caught.value.what


def test_a_text_and_a_key_may_be_as_long_as_the_most() -> None:
    for text in (f"a: {'x' * MAX_TEXT}", f"{'k' * MAX_KEY}: 1"):
        assert isinstance(read_document(text.encode(), Errors()), dict)
    assert "is too long" in refused(f"a: {'x' * (MAX_TEXT + 1)}")
    assert refused(f"{'k' * (MAX_KEY + 1)}: 1") == "a key is no text"


@pytest.mark.parametrize("merged", ["7", "[*a, 7]", "[[1]]"])
def test_a_merge_key_that_names_no_mapping_is_refused(merged: str) -> None:
    assert refused(f"a: &a {{b: 1}}\nc: {{<<: {merged}}}") == "a merge key names what is no mapping"
