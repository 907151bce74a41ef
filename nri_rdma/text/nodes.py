"""Nodes, the values that a text in YAML, TOML or JSON is parsed into: scalars, lists and mappings.

A scalar keeps its text, because its type depends on the key that it is for: ``14e4`` is a PCI vendor id for one key,
and a number for another. Scalar follows the rules of YAML 1.2; a subclass follows the rules of another language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.text.refusals import quoted

Path: TypeAlias = tuple[str | int, ...]
"""The path to a value: keys of mappings and indexes of lists, such as ``("devices", 2, "containerEdits")``."""
CoreValue: TypeAlias = bool | int | float | str | None
Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A string, number, truth value or null, as it is written. `plain` says that it is written without quotes: only
    then can it be something other than a string. `line` is its line in the text; 0: unknown."""

    text: str
    plain: bool
    line: int = 0

    @property
    def value(self) -> CoreValue:
        """Return the value by the YAML 1.2 core schema: ``on`` and ``0000:10:00.0`` are strings, ``010`` is 10."""
        if not self.plain or not _IS_CORE.fullmatch(self.text):
            return self.text
        return next((resolve(self.text) for pattern, resolve in _CORE if pattern.fullmatch(self.text)), self.text)

    @property
    def number(self) -> int | None:
        """Return the whole number; None if the scalar is not a whole number."""
        value = self.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def truth(self) -> bool | None:
        """Return the truth value; None if the scalar is not a truth value."""
        value = self.value
        return value if isinstance(value, bool) else None

    @property
    def is_missing(self) -> bool:
        """Return whether a key with this value is treated as a key that is not written. False here; a subclass may
        return True for null."""
        return False

    @property
    def shown(self) -> str:
        """Return the words for this scalar in the error of a reader that expects a number or a truth value."""
        return shown(self)


_CORE: tuple[tuple[re.Pattern[str], Callable[[str], CoreValue]], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda text: None),
    (re.compile(r"true|True|TRUE"), lambda text: True),
    (re.compile(r"false|False|FALSE"), lambda text: False),
    (re.compile(r"[-+]?[0-9]+", re.ASCII), int),
    (re.compile(r"0o[0-7]+"), lambda text: int(text, 0)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII), float),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda text: float("nan")),
)
_IS_CORE = re.compile("|".join(f"(?:{pattern.pattern})" for pattern, _ in _CORE))
"""Matches each text without quotes that is not a string. Most scalars are strings: this one search spares them the
search for each pattern of _CORE."""


class LinedList(list[Node]):
    """A list node with the number of its line in the text."""

    def __init__(self, items: list[Node], line: int) -> None:
        super().__init__(items)
        self.line = line


class LinedMapping(dict[str, Node]):
    """A mapping node with the number of its line in the text, and the line of each of its keys."""

    def __init__(self, values: Mapping[str, Node], line: int, lines: Mapping[str, int]) -> None:
        super().__init__(values)
        self.line = line
        self.lines = lines


def line_of(node: Node | Mapping[str, Node], key: str | None = None) -> int:
    """Return the line of a mapping's key. Without `key`, or for a key without a line, return the line of the node; 0 if
    the node does not know its line."""
    line: int = getattr(node, "line", 0)
    return node.lines.get(key, line) if key is not None and isinstance(node, LinedMapping) else line


def shown(node: Node) -> str:
    """Return the words for a node in an error: "a list", "a mapping", "an empty value", or the scalar's text in
    quotes."""
    if isinstance(node, list):
        return "a list"
    if isinstance(node, dict):
        return "a mapping"
    return "an empty value" if node.plain and not node.text else quoted(node.text)


def is_missing(node: Node) -> bool:
    """Return whether a key with this node as its value is treated as a key that is not written."""
    return isinstance(node, Scalar) and node.is_missing


def node_of(value: object, scalar: type[Scalar] = Scalar) -> Node:
    """Return the node for a parsed value of TOML or JSON. `scalar` is the class of the scalars in it. A string stays a
    string: it is never taken for a number."""
    match value:
        case None:
            return scalar("null", plain=True)
        case dict():
            return {str(key): node_of(item, scalar) for key, item in value.items()}
        case list():
            return [node_of(item, scalar) for item in value]
        case bool():
            return scalar("true" if value else "false", plain=True)
        case str():
            return scalar(value, plain=False)
        case _:
            return scalar(str(value), plain=True)
