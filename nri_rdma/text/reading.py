"""Typed reading of the nodes that a stranger's YAML became.

A reader turns the node at a place into a value, or raises RequestError that names the place and what is allowed there.
Grammars are made of these readers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias, TypeVar

from nri_rdma.errors import RequestError
from nri_rdma.text.refusals import MAX_PROBLEMS, each_of, listed, quoted, refuse_all, refused, unknown_key
from nri_rdma.text.yaml import CoreValue, Node, Scalar

T = TypeVar("T")
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

Reader: TypeAlias = Callable[[Node, str], T]
UnknownKey: TypeAlias = Callable[[str, tuple[str, ...], str], RequestError]
"""Makes the error for a key that is none of the known ones, at a place."""


class Fields:
    """A mapping with known keys, read field by field; `unknown` makes the error for another key.

    These errors are raised, or go to `errors` where the caller has others to report with them."""

    def __init__(
        self,
        node: Node,
        where: str,
        known: tuple[str, ...],
        unknown: UnknownKey = unknown_key,
        errors: list[RequestError] | None = None,
    ) -> None:
        if not isinstance(node, dict):
            raise refused(where, f"{shown(node)} is not a mapping", f"write {{key: value}} with {listed(known)}")
        foreign = [key for key in node if key not in known][:MAX_PROBLEMS]
        found = [unknown(key, known, where) for key in foreign]
        if errors is None:
            refuse_all(found)
        else:
            errors += found
        self.node = node
        self.where = where

    def __contains__(self, key: str) -> bool:
        return key in self.node

    def read(self, key: str, reader: Reader[T], default: D) -> T | D:
        """Return the value of a key, or the default where the key is not there; an empty value is not a default."""
        if key not in self.node:
            return default
        return reader(self.node[key], f"{self.where}.{key}")


def core_value(node: Node) -> CoreValue:
    """Return the value of a scalar; None for null and for a collection, which no reader takes."""
    return node.value if isinstance(node, Scalar) else None


def string(node: Node, where: str, hint: str) -> str:
    """Return the text of a string."""
    value = core_value(node)
    if isinstance(value, str):
        return value
    quotes = "" if value is None else ", not text; put it in quotes if it is meant so"
    raise refused(where, f"{shown(node)} is not allowed{quotes}", hint)


def matching(pattern: re.Pattern[str], hint: str) -> Reader[str]:
    """Return the reader of a string that the pattern matches as a whole."""

    def read(node: Node, where: str) -> str:
        value = string(node, where, hint)
        if not pattern.fullmatch(value):
            raise refused(where, f"{quoted(value)} is not allowed", hint)
        return value

    return read


def one_of(kind: type[E]) -> Reader[E]:
    """Return the reader of a member by its value, in its one spelling."""

    def read(node: Node, where: str) -> E:
        value = core_value(node)
        if not isinstance(value, str) or value not in [*kind]:
            raise refused(where, f"{shown(node)} is not allowed", f"write one of {listed(kind)}")
        return kind(value)

    return read


def whole(low: int, high: int, *, hint: str = "") -> Reader[int]:
    """Return the reader of a whole number between two bounds, both included."""

    def read(node: Node, where: str) -> int:
        value = core_value(node)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            allowed = f"write a whole number from {low} to {high}"
            raise refused(where, f"{shown(node)} is not allowed", hint or allowed)
        return value

    return read


def word_or(word: str, meaning: D, reader: Reader[T]) -> Reader[T | D]:
    """Return the reader of a word with a meaning of its own, or of what the other reader takes."""

    def read(node: Node, where: str) -> T | D:
        return meaning if core_value(node) == word else reader(node, where)

    return read


def boolean(node: Node, where: str) -> bool:
    """Read true or false; to YAML 1.2 yes, no, on and off are words."""
    value = core_value(node)
    if not isinstance(value, bool):
        raise refused(where, f"{shown(node)} is not allowed", "write true or false")
    return value


def list_of(reader: Reader[T]) -> Reader[tuple[T, ...]]:
    """Return the reader of a list with at least one entry and none twice.

    An empty list would say neither the default nor anything else."""

    def read(node: Node, where: str) -> tuple[T, ...]:
        if not isinstance(node, list):
            raise refused(where, f"{shown(node)} is not a list", "write [ ] around it")
        if not node:
            raise refused(where, "the list is empty", "leave the key out, or name at least one")
        items = tuple(each_read(node, where, reader))
        before: set[T] = set()
        for index, item in enumerate(items):
            if item in before:
                raise refused(f"{where}[{index}]", f"{item} is there twice", "name it once")
            before.add(item)
        return items

    return read


def each_read(nodes: list[Node], where: str, reader: Reader[T]) -> list[T]:
    """Return what the entries of a list are. Raises the errors of all of them together."""
    items: list[T] = []
    errors: list[RequestError] = []
    for index, node in enumerate(nodes):
        try:
            items.append(reader(node, f"{where}[{index}]"))
        except RequestError as error:
            errors += each_of(error)
            if len(errors) >= MAX_PROBLEMS:
                break
    refuse_all(errors)
    return items


def shown(node: Node) -> str:
    """Return the node for a sentence."""
    if isinstance(node, list):
        return "a list"
    if isinstance(node, dict):
        return "a mapping"
    return "an empty value" if node.plain and not node.text else quoted(node.text)
