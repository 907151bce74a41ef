"""The docstring of a function begins with a verb, that of a class with a noun: neither with a question word nor with a
pronoun (style.md, 46)."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from tests.house import measure
from tests.house.measure import PROJECT, Source, read_sources

SOURCES = tuple(it for it in read_sources(PROJECT / measure.PACKAGE) if not it.is_in(measure.GENERATED))

UNCLEAR = re.compile(
    r"(What|Whatever|Whether|Who|Whoever|Whom|Whose|Which|Where|Why|How|When"
    r"|I|You|He|She|It|Its|We|Our|Ours|They|Them|Their|This|That|These|Those)\b"
)
PROPERTIES = ("property", "cached_property")


def begins_unclear(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
    """Return whether the docstring begins with a question word or a pronoun; a property may begin with Whether."""
    text = ast.get_docstring(node) or ""
    if not isinstance(node, ast.ClassDef) and _is_property(node) and text.startswith("Whether "):
        return False
    return UNCLEAR.match(text) is not None


def _is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = (ast.unparse(decorator) for decorator in function.decorator_list)
    return any(name.rpartition(".")[2] in PROPERTIES for name in names)


def unclear(sources: Collection[Source]) -> Iterator[tuple[str, str]]:
    """Yield the room and the place of each function and class whose docstring begins with a question word or a
    pronoun."""
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and begins_unclear(node):
                yield source.room, f"nri_rdma/{source.path}:{node.lineno} {node.name}"


@pytest.mark.parametrize("room", sorted({source.room for source in SOURCES}))
def test_docstrings_begin_with_a_verb_or_a_noun(room: str) -> None:
    places = [place for _, place in unclear([source for source in SOURCES if source.room == room])]
    step = "begin these docstrings with a verb in the imperative (a class: with a noun), for example `Return ...`:"
    assert not places, "\n".join([step, *places])


PLANTED = '''
class Device:
    @property
    def is_free(self) -> bool:
        """Whether no pod has the device."""

    @functools.cached_property
    def name(self) -> str:
        """What the kernel calls the device."""

    def _owner(self) -> str:
        """Who has it."""

async def wait():
    """Wait until it is free."""
    def inner():
        """It is free then."""

def read():
    """Whether the node was read."""

def itself():
    """Itemise what is there; whether that is all."""

def bare(): ...

class Holder:
    """Who has the device."""
'''


def test_planted_docstrings_are_found(tmp_path: Path) -> None:
    package = tmp_path / "nri_rdma"
    (package / "room").mkdir(parents=True)
    (package / "room" / "planted.py").write_text(PLANTED)
    found = [place.rpartition(" ")[2] for _, place in unclear(read_sources(package))]
    assert sorted(found) == ["Holder", "_owner", "inner", "name", "read"]
    assert {room for room, _ in unclear(read_sources(package))} == {"room"}
