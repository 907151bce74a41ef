"""The nodes that a text becomes: scalars as they are written, lists and mappings.

A scalar keeps its text, because its type depends on who reads it: ``14e4`` is a vendor to one reader and a float to
another. What its text means depends on the language of the text: Scalar is YAML 1.2, and other languages subclass it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.text.refusals import quoted

Path: TypeAlias = tuple[str | int, ...]
"""The way to a value: keys and places in lists, such as ``("devices", 2, "containerEdits")``."""
CoreValue: TypeAlias = bool | int | float | str | None
Node: TypeAlias = "Scalar | list[Node] | dict[str, Node]"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A scalar as written; `plain` is one without quotes, the only kind that can be other than a string. `line` is 0
    in a text whose lines are found in another way."""

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
        """Return the whole number; None if the scalar is none."""
        value = self.value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def truth(self) -> bool | None:
        """Return the truth value; None if the scalar is none."""
        value = self.value
        return value if isinstance(value, bool) else None

    @property
    def is_missing(self) -> bool:
        """Return whether a key with this value counts as a key that is not there."""
        return False

    @property
    def shown(self) -> str:
        """Return the scalar for the error of a number or of a truth value."""
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
"""Whatever is no string: most scalars are strings, and one look tells."""


class LinedList(list[Node]):
    """A list that knows its line."""

    def __init__(self, items: list[Node], line: int) -> None:
        super().__init__(items)
        self.line = line


class LinedMapping(dict[str, Node]):
    """A mapping that knows its line and those of its keys."""

    def __init__(self, values: Mapping[str, Node], line: int, lines: Mapping[str, int]) -> None:
        super().__init__(values)
        self.line = line
        self.lines = lines


def line_of(node: Node | Mapping[str, Node], key: str | None = None) -> int:
    """Return the line of a mapping's key, or of the node without such a key; 0 if nodes do not know their lines."""
    line: int = getattr(node, "line", 0)
    return node.lines.get(key, line) if key is not None and isinstance(node, LinedMapping) else line


def shown(node: Node) -> str:
    """Return the node for a sentence."""
    if isinstance(node, list):
        return "a list"
    if isinstance(node, dict):
        return "a mapping"
    return "an empty value" if node.plain and not node.text else quoted(node.text)


def is_missing(node: Node) -> bool:
    """Return whether a key with this value counts as a key that is not there."""
    return isinstance(node, Scalar) and node.is_missing


def node_of(value: object, scalar: type[Scalar] = Scalar) -> Node:
    """Return a value of TOML or JSON as the readers take it, with scalars of that class. Its kind is kept: a text is
    never read as a number."""
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
