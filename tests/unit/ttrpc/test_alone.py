"""The library needs nothing but Python and protobuf, and leaves nothing in what a process shares."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool

import nri_rdma.ttrpc
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb

(ROOT,) = map(Path, nri_rdma.ttrpc.__path__)
FILES = sorted(ROOT.rglob("*.py"))


def imported(tree: ast.AST, depth: int) -> Iterator[str]:
    """What a file imports from outside; `depth` folders are between the file and the package's parent."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(level=0, module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.ImportFrom(level=level, module=module) if level > depth:
                yield f"{'.' * level}{module or ''}"


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(ROOT)) for file in FILES])
def test_every_import_is_relative_or_python_s_or_protobuf_s(file: Path) -> None:
    names = imported(ast.parse(file.read_text(encoding="utf-8")), len(file.relative_to(ROOT).parts))
    foreign = [name for name in names if name.partition(".")[0] not in sys.stdlib_module_names]
    assert [name for name in foreign if not f"{name}.".startswith("google.protobuf.")] == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import nri_rdma.model", ["nri_rdma.model"]),
        ("from nri_rdma.ttrpc import Call", ["nri_rdma.ttrpc.Call"]),
        ("def f():\n    from ... import model", ["..."]),
        ("from ...model import link", ["...model"]),
        ("from .. import calls\nfrom . import link", []),
    ],
)
def test_what_such_an_import_is(code: str, found: list[str]) -> None:
    """Of a file in a folder of the package."""
    assert list(imported(ast.parse(code), 2)) == found


def test_the_whole_package_was_looked_at() -> None:
    assert {file.parent.relative_to(ROOT).as_posix() for file in FILES} == {".", "aio", "pb", "wire"}


def test_its_messages_are_not_in_the_pool_of_the_process() -> None:
    """Where a second copy of the library, or anybody's file with a message ttrpc.Request, would be refused."""
    assert pb.Request.DESCRIPTOR.full_name == "ttrpc.Request"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindMessageTypeByName("ttrpc.Request")
