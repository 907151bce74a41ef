"""Typed reading of a CDI spec's nodes.

A reader turns the node at a place into a value, or raises CdiError. Whoever reads a field or an entry of a list adds
the error to the file's problems and goes on with the next: one look at a file finds everything. What stands in for the
unreadable value is never used, since a file with problems has no spec.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from nri_rdma.cdi.document import List, Mapping, Node, Text
from nri_rdma.cdi.problems import Problems
from nri_rdma.cdi.scalars import truth, whole_number
from nri_rdma.errors import CdiError, ErrorCode
from nri_rdma.text.refusals import listed, nearest, quoted
from nri_rdma.text.yaml import Path

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class Place:
    """A node's path in its document, and the collection of problems."""

    problems: Problems
    path: Path = ()

    def below(self, step: str | int) -> Place:
        """Return the place of a field or of an entry."""
        return Place(self.problems, (*self.path, step))

    def refused(self, line: int, what: str, hint: str, code: ErrorCode = ErrorCode.CDI_VALUE) -> CdiError:
        """Return the error of the value at this place."""
        return self.problems.error(code, what, hint=hint, line=line, path=self.path)


Reader: TypeAlias = Callable[[Node, Place], T]


class Fields:
    """A mapping with known fields, read one by one. A null counts as a missing field."""

    def __init__(self, node: Node, place: Place, known: tuple[str, ...]) -> None:
        if not isinstance(node, Mapping):
            raise place.refused(node.line, f"{shown(node)} is not a mapping", f"write the fields {listed(known)}")
        self._node = node
        self._place = place
        for key, entry in node.entries.items():
            if key not in known:
                what, hint = f"unknown field {quoted(key)}", f"{nearest(key, known)}the fields are {listed(known)}"
                place.problems.add(place.below(key).refused(entry.line, what, hint, ErrorCode.CDI_UNKNOWN_FIELD))

    def read(self, key: str, reader: Reader[T], default: D) -> T | D:
        """Read the field's value; the default without the field."""
        entry = self._node.entries.get(key)
        if entry is None or (isinstance(entry.node, Text) and entry.node.is_null):
            return default
        return _collected(reader, entry.node, self._place.below(key), default)

    def required(self, key: str, reader: Reader[T], instead: D, hint: str) -> T | D:
        """Read the field's value, which must be there; `hint` says what to write."""
        entry = self._node.entries.get(key)
        if entry is None or (isinstance(entry.node, Text) and entry.node.is_null):
            line = self._node.line if entry is None else entry.line
            self._place.problems.add(self._place.below(key).refused(line, f"{key} is missing", hint))
            return instead
        return _collected(reader, entry.node, self._place.below(key), instead)

    def line(self, key: str) -> int:
        """Return the field's line; that of the whole mapping without the field."""
        entry = self._node.entries.get(key)
        return self._node.line if entry is None else entry.line


def _collected(reader: Reader[T], node: Node, place: Place, instead: D) -> T | D:
    try:
        return reader(node, place)
    except CdiError as error:
        place.problems.add(error)
        return instead


def string(node: Node, place: Place) -> str:
    """Read a text; a number or a date is the text that it is written with."""
    if not isinstance(node, Text) or node.is_null:
        raise place.refused(node.line, f"{shown(node)} is not a text", "write a text, in quotes where in doubt")
    return node.text


def non_empty(node: Node, place: Place) -> str:
    """Read a text that is not empty."""
    text = string(node, place)
    if not text:
        raise place.refused(node.line, "the text is empty", "write something")
    return text


def matching(pattern: re.Pattern[str], hint: str) -> Reader[str]:
    """Return the reader of a text that the pattern matches as a whole."""

    def read(node: Node, place: Place) -> str:
        text = string(node, place)
        if not pattern.fullmatch(text):
            raise place.refused(node.line, f"{quoted(text)} is not allowed", hint)
        return text

    return read


def one_of(kind: type[E]) -> Reader[E]:
    """Return the reader of an enum's member by its value."""

    def read(node: Node, place: Place) -> E:
        text = string(node, place)
        if text not in [*kind]:
            raise place.refused(node.line, f"{quoted(text)} is not allowed", f"write one of {listed(kind)}")
        return kind(text)

    return read


def empty_or(reader: Reader[T]) -> Reader[T | None]:
    """Return the reader that takes an empty text, too."""

    def read(node: Node, place: Place) -> T | None:
        return None if isinstance(node, Text) and not node.text else reader(node, place)

    return read


def whole(low: int, high: int) -> Reader[int]:
    """Return the reader of a whole number between two bounds, both included."""

    def read(node: Node, place: Place) -> int:
        value = whole_number(node) if isinstance(node, Text) else None
        if value is None or not low <= value <= high:
            allowed = f"write a whole number from {low} to {high}"
            raise place.refused(node.line, f"{shown(node)}{_in_quotes(node)} is not allowed", allowed)
        return value

    return read


def boolean(node: Node, place: Place) -> bool:
    """Read a truth value."""
    value = truth(node) if isinstance(node, Text) else None
    if value is None:
        raise place.refused(node.line, f"{shown(node)}{_in_quotes(node)} is not allowed", "write true or false")
    return value


def list_of(reader: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return the reader of a list, which may be empty. A null in it would crash some runtimes and vanish in others."""

    def read(node: Node, place: Place) -> tuple[T, ...]:
        if not isinstance(node, List):
            raise place.refused(node.line, f"{shown(node)} is not a list", "write - or [ ] around it")
        items: list[T] = []
        for index, item in enumerate(node.items):
            below = place.below(index)
            if isinstance(item, Text) and item.is_null:
                place.problems.add(below.refused(item.line, "there is nothing in this entry", "take the entry out"))
            elif (value := _collected(reader, item, below, None)) is not None:
                items.append(value)
        return tuple(items)

    return read


def texts_by_key(node: Node, place: Place) -> tuple[tuple[str, str], ...]:
    """Read a mapping of texts; a null is an empty text."""
    if not isinstance(node, Mapping):
        raise place.refused(node.line, f"{shown(node)} is not a mapping", "write KEY: text")
    pairs: list[tuple[str, str]] = []
    for key, entry in node.entries.items():
        empty = isinstance(entry.node, Text) and entry.node.is_null
        pairs.append((key, "" if empty else _collected(string, entry.node, place.below(key), "")))
    return tuple(pairs)


def shown(node: Node) -> str:
    """Return the node as a sentence shows it."""
    if isinstance(node, List):
        return "a list"
    if isinstance(node, Mapping):
        return "a mapping"
    return "an empty value" if node.plain and not node.text else quoted(node.text)


def _in_quotes(node: Node) -> str:
    """Return the words for a scalar in quotes: the quotes alone can make a number or a truth value wrong."""
    return " in quotes" if isinstance(node, Text) and not node.plain else ""
