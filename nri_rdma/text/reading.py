"""Reads parsed YAML, TOML and JSON into typed values: for requests, pools, rules, settings and CDI specs.

A node is a parsed value: a scalar, a list or a mapping. A reader is a function that gets a node and its place, a text
such as ``pools.a.modes``. It returns the value, or raises RequestError that names the place and says what is allowed
there.

Readers of lists and mappings are made from readers of their values. They collect the errors of all values, and add to
each error the line of its node, if the node knows it.
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
"""A function that returns the error for an unknown key. Its arguments are the key, the known keys, and the place of the
mapping."""


@dataclass(frozen=True, slots=True)
class MappingErrors:
    """The errors of a mapping in one kind of text. `unknown` makes the error for an unknown key, and `hint` is the hint
    for a value that is not a mapping (``{}`` in it stands for the known keys). At most `most` errors are kept."""

    unknown: UnknownKey = unknown_key
    hint: str = "write {{key: value}} with {}"
    most: int = MAX_PROBLEMS


OF_REQUESTS = MappingErrors()


def mapping(
    node: Node, where: str, known: tuple[str, ...], errors: Errors, wording: MappingErrors = OF_REQUESTS
) -> Mapping[str, Node]:
    """Return `node` if it is a mapping; raise RequestError if it is not. For each key that is not in `known`, an error
    is added to `errors`. `wording` makes the errors."""
    if not isinstance(node, dict):
        raise refused(where, f"{shown(node)} is not a mapping", wording.hint.format(listed(known)))
    foreign = [key for key in node if key not in known]
    for key in foreign[: wording.most]:  # for each of them the right one is looked for, which takes its time
        errors.add(wording.unknown(key, known, where), line_of(node, key))
    errors.omitted += len(foreign[wording.most :])
    return node


def core_value(node: Node) -> CoreValue:
    """Return the value of a scalar. Returns None for null, for a list and for a mapping: callers refuse all three."""
    return node.value if isinstance(node, Scalar) else None


# Scalars


def string(node: Node, where: str, hint: str) -> str:
    """Return the text of a string. Raises RequestError with `hint` for any other value, such as a number without
    quotes."""
    value = core_value(node)
    if isinstance(value, str):
        return value
    quotes = "" if value is None else ", not text; put it in quotes if it is meant so"
    raise refused(where, f"{shown(node)} is not allowed{quotes}", hint)


def text_with(hint: str) -> Reader[str]:
    """Return a function that reads a string. It raises RequestError with `hint` for any other value."""
    return lambda node, where: string(node, where, hint)


def written(hint: str) -> Reader[str]:
    """Return a function that reads any scalar as the text that is written: 0600 without quotes is the text "0600". It
    raises RequestError with `hint` for a list, for a mapping, and for a null that stands for a missing key."""

    def read(node: Node, where: str) -> str:
        if not isinstance(node, Scalar) or node.is_missing:
            raise refused(where, f"{shown(node)} is not a text", hint)
        return node.text

    return read


def matching(pattern: re.Pattern[str], hint: str, text: Reader[str] | None = None) -> Reader[str]:
    """Return a function that reads a string and refuses it with `hint` unless the pattern matches it as a whole. `text`
    reads the string from the parsed value; None: the parsed value must be a string."""
    return parsed(lambda value: value if pattern.fullmatch(value) else None, hint, text)


def parsed(
    parse: Callable[[str], T | None], hint: str, text: Reader[str] | None = None, what: str = "{} is not allowed"
) -> Reader[T]:
    """Return a function that reads a string and turns it into a value by `parse`. If `parse` returns None or raises
    ValueError, the string is refused: `what` is the error's text (``{}`` in it stands for the string). `text` reads the
    string from the parsed value; None: the parsed value must be a string."""
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
    """Return a function that reads an empty text as None, and any other value by `reader`."""
    return lambda node, where: None if isinstance(node, Scalar) and not node.text else reader(node, where)


def one_of(kind: type[E], text: Reader[str] | None = None) -> Reader[E]:
    """Return a function that reads a member of the enum `kind` by its value, in which upper and lower case differ.
    `text` reads the value from the parsed value; None: the parsed value must be a string."""
    hint = f"write one of {listed(kind)}"
    # kubectl reads a manifest as YAML 1.1: of a claim's parameters `off` comes as false.
    quoted = f'{hint}; off in quotes ("off"), which else is false in a claim' if "off" in [*kind] else hint

    def read(node: Node, where: str) -> E:
        value = core_value(node) if text is None else text(node, where)
        if not isinstance(value, str) or value not in [*kind]:
            raise refused(where, f"{shown(node)} is not allowed", quoted if value is False else hint)
        return kind(value)

    return read


def whole(low: int, high: int, *, hint: str = "") -> Reader[int]:
    """Return a function that reads a whole number from `low` to `high`, both included. `hint` replaces the usual hint
    of its error."""
    allowed = hint or f"write a whole number from {low} to {high}"

    def read(node: Node, where: str) -> int:
        value = node.number if isinstance(node, Scalar) else None
        if value is None or not low <= value <= high:
            raise refused(where, f"{_unfit(node)} is not allowed", allowed)
        return value

    return read


def word_or(word: str, meaning: D, reader: Reader[T]) -> Reader[T | D]:
    """Return a function that returns `meaning` for the string `word`, and reads any other value by `reader`."""

    def read(node: Node, where: str) -> T | D:
        return meaning if core_value(node) == word else reader(node, where)

    return read


def boolean(node: Node, where: str) -> bool:
    """Read true or false; raise RequestError for anything else. In YAML 1.2 the words yes, no, on and off are
    strings."""
    value = node.truth if isinstance(node, Scalar) else None
    if value is None:
        raise refused(where, f"{_unfit(node)} is not allowed", "write true or false")
    return value


def _unfit(node: Node) -> str:
    return node.shown if isinstance(node, Scalar) else shown(node)


# Lists


def list_of(reader: Reader[H]) -> Reader[tuple[H, ...]]:
    """Return a function that reads a list into a tuple, each entry by `reader`. It raises RequestError for an empty
    list and for a value that occurs twice. Authors who want the default have to leave the key out."""

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
    """Read each entry of a list by `reader`, and return the values. Errors are added to `errors`. If `errors` is None,
    one RequestError with all errors is raised; reading then stops after MAX_PROBLEMS errors."""
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
