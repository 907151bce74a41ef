"""Typed reading of nodes: the one reader of requests, of pools and rules, of settings and of CDI specs.

A reader turns the node at a place into a value, or raises RequestError that names the place and what is allowed there.
Grammars are made of these readers. Whoever reads several values collects their errors, and adds the line of each if the
nodes know their lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias, TypeVar

from nri_rdma.errors import RequestError
from nri_rdma.text.nodes import CoreValue, Node, Scalar, line_of, shown
from nri_rdma.text.refusals import MAX_PROBLEMS, Errors, listed, quoted, refused, unknown_key

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)
D = TypeVar("D")
E = TypeVar("E", bound=StrEnum)

Reader: TypeAlias = Callable[[Node, str], T]
UnknownKey: TypeAlias = Callable[[str, tuple[str, ...], str], RequestError]
"""Makes the error for a key that is none of the known ones, at a place."""


@dataclass(frozen=True, slots=True)
class MappingErrors:
    """The errors of a mapping in one kind of text: `unknown` makes the error for an unknown key, `hint` says what to
    write instead of a value that is no mapping, and at most `most` errors are kept."""

    unknown: UnknownKey = unknown_key
    hint: str = "write {{key: value}} with {}"
    most: int = MAX_PROBLEMS


OF_REQUESTS = MappingErrors()


def mapping(
    node: Node, where: str, known: tuple[str, ...], errors: Errors, wording: MappingErrors = OF_REQUESTS
) -> Mapping[str, Node]:
    """Return a mapping with known keys. Raises the error of another value; those of other keys go to `errors`."""
    if not isinstance(node, dict):
        raise refused(where, f"{shown(node)} is not a mapping", wording.hint.format(listed(known)))
    foreign = [key for key in node if key not in known]
    for key in foreign[: wording.most]:  # for each of them the right one is looked for, which takes its time
        errors.add(wording.unknown(key, known, where), line_of(node, key))
    errors.omitted += len(foreign[wording.most :])
    return node


def core_value(node: Node) -> CoreValue:
    """Return the value of a scalar; None for null and for a collection, which no reader takes."""
    return node.value if isinstance(node, Scalar) else None


# Scalars


def string(node: Node, where: str, hint: str) -> str:
    """Return the text of a string."""
    value = core_value(node)
    if isinstance(value, str):
        return value
    quotes = "" if value is None else ", not text; put it in quotes if it is meant so"
    raise refused(where, f"{shown(node)} is not allowed{quotes}", hint)


def text_with(hint: str) -> Reader[str]:
    """Return the reader of a string."""
    return lambda node, where: string(node, where, hint)


def written(hint: str) -> Reader[str]:
    """Return the reader of any scalar but null, as the text that it is written with."""

    def read(node: Node, where: str) -> str:
        if not isinstance(node, Scalar) or node.is_missing:
            raise refused(where, f"{shown(node)} is not a text", hint)
        return node.text

    return read


def matching(pattern: re.Pattern[str], hint: str, text: Reader[str] | None = None) -> Reader[str]:
    """Return the reader of a string that the pattern matches as a whole; `text` reads the string."""
    return parsed(lambda value: value if pattern.fullmatch(value) else None, hint, text)


def parsed(
    parse: Callable[[str], T | None], hint: str, text: Reader[str] | None = None, what: str = "{} is not allowed"
) -> Reader[T]:
    """Return the reader of a string that a function turns into a value. None and ValueError mean that it cannot: `what`
    is the error then."""
    read_text = text or text_with(hint)

    def read(node: Node, where: str) -> T:
        value = read_text(node, where)
        try:
            found = parse(value)
        except ValueError:
            found = None
        if found is None:
            raise refused(where, what.format(quoted(value)), hint)
        return found

    return read


def empty_or(reader: Reader[T]) -> Reader[T | None]:
    """Return the reader that takes an empty text, too: it means None."""
    return lambda node, where: None if isinstance(node, Scalar) and not node.text else reader(node, where)


def one_of(kind: type[E], text: Reader[str] | None = None) -> Reader[E]:
    """Return the reader of a member by its value, in its one spelling; `text` reads the string."""
    hint = f"write one of {listed(kind)}"

    def read(node: Node, where: str) -> E:
        value = core_value(node) if text is None else text(node, where)
        if not isinstance(value, str) or value not in [*kind]:
            raise refused(where, f"{shown(node)} is not allowed", hint)
        return kind(value)

    return read


def whole(low: int, high: int, *, hint: str = "") -> Reader[int]:
    """Return the reader of a whole number between two bounds, both included."""
    allowed = hint or f"write a whole number from {low} to {high}"

    def read(node: Node, where: str) -> int:
        value = node.number if isinstance(node, Scalar) else None
        if value is None or not low <= value <= high:
            raise refused(where, f"{_unfit(node)} is not allowed", allowed)
        return value

    return read


def word_or(word: str, meaning: D, reader: Reader[T]) -> Reader[T | D]:
    """Return the reader of a word with a meaning of its own, or of what the other reader takes."""

    def read(node: Node, where: str) -> T | D:
        return meaning if core_value(node) == word else reader(node, where)

    return read


def boolean(node: Node, where: str) -> bool:
    """Read true or false; to YAML 1.2 yes, no, on and off are words."""
    value = node.truth if isinstance(node, Scalar) else None
    if value is None:
        raise refused(where, f"{_unfit(node)} is not allowed", "write true or false")
    return value


def _unfit(node: Node) -> str:
    return node.shown if isinstance(node, Scalar) else shown(node)


# Lists


def list_of(reader: Reader[H]) -> Reader[tuple[H, ...]]:
    """Return the reader of a list with at least one entry and none twice.

    An empty list would say neither the default nor anything else."""

    def read(node: Node, where: str) -> tuple[H, ...]:
        if not isinstance(node, list):
            raise refused(where, f"{shown(node)} is not a list", "write [ ] around it")
        if not node:
            raise refused(where, "the list is empty", "leave the key out, or name at least one")
        items = tuple(each_read(node, where, reader))
        before: set[H] = set()
        for index, item in enumerate(items):
            if item in before:
                raise refused(f"{where}[{index}]", f"{item} is there twice", "name it once")
            before.add(item)
        return items

    return read


def each_read(nodes: list[Node], where: str, reader: Reader[T], errors: Errors | None = None) -> list[T]:
    """Return the values of the entries of a list. Raises the errors of all of them together, and does not read on after
    very many; or adds them all to `errors`."""
    items: list[T] = []
    found = Errors() if errors is None else errors
    for index, node in enumerate(nodes):
        try:
            items.append(reader(node, f"{where}[{index}]"))
        except RequestError as error:
            found.add(error, line_of(node, error.key or None))
            if errors is None and len(found) >= MAX_PROBLEMS:
                break
    if errors is None:
        found.refuse()
    return items
