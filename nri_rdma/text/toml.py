"""Finds the line numbers of the keys in a TOML document, which tomllib does not report."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache


@lru_cache(maxsize=4)
def lines_of(text: str) -> Mapping[str, int]:
    """Return the first line of each key of a valid TOML text, by the key's path (``rules[0].namespaces``)."""
    lines: dict[str, int] = {}
    tables: dict[str, int] = {}
    home = ""
    for number, statement in _statements(text):
        if statement.lstrip().startswith("["):
            home = _header(statement, tables)
            lines.setdefault(home, number)
        else:
            for path in _paths(tomllib.loads(statement), home):
                lines.setdefault(path, number)
    return lines


def line_of(lines: Mapping[str, int], path: str) -> int:
    """Return the line of a path, or else of the nearest enclosing path; 0 if the text has neither."""
    while path not in lines and path:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path, 0)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yield each header and setting of the text with the number of its first line, in one pass.

    A statement ends at the end of the line in which all its brackets and quoted texts are closed.
    """
    line, begin, open_brackets = 1, 0, 0
    first = line
    for found in _TOKEN.finditer(f"{text}\n"):
        token = found[0]
        line += token.count("\n")
        if token in _BRACKETS:
            open_brackets += _BRACKETS[token]
        elif token == "\n" and not open_brackets:
            yield first, text[begin : found.end()]  # with its newline, before which there may be a carriage return
            begin, first = found.end(), line


_TOKEN = re.compile(
    r"""\"{3}(?:[^\\]|\\.)*?\"{3,5}   # a text of several lines, which may end with quotes of its own
    |'{3}.*?'{3,5}
    |"(?:[^"\\\n]|\\.)*"
    |'[^'\n]*'
    |\#[^\n]*
    |[\[\]{}\n]""",
    re.VERBOSE | re.DOTALL,
)
_BRACKETS = {"[": 1, "{": 1, "]": -1, "}": -1}


def _header(statement: str, tables: dict[str, int]) -> str:
    """Return the path of a table's header, such as ``rules[1]``. `tables` has the number of headers so far for each
    list of tables; the function updates it."""
    keys: list[str] = []
    value: object = tomllib.loads(statement)
    is_list = False
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        keys.append(key)
        if isinstance(value, list):
            is_list, value = True, None
    path = ""
    for depth, key in enumerate(keys, start=1):
        path = f"{path}.{key}" if path else key
        if depth == len(keys) and is_list:
            tables[path] = tables.get(path, 0) + 1
        if path in tables:
            path = f"{path}[{tables[path] - 1}]"
    return path


def _paths(value: object, where: str) -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                path = f"{where}.{key}" if where else str(key)
                yield path
                yield from _paths(item, path)
        case list():
            for index, item in enumerate(value):
                yield f"{where}[{index}]"
                yield from _paths(item, f"{where}[{index}]")
