"""Output for a terminal: plain tables as wide as the terminal, bold or coloured only if the user wants it.

Each text goes through `printable`, because names and errors come from others and could contain control characters.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import click

WIDTH_WITHOUT_TERMINAL = 120
NARROWEST = 60
_GAP = "  "
_LEAST_LAST_WIDTH = 24
"""The smallest width of a table's last column. If less room is left, the text of the last column goes on a line of its
own below the row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTable:
    """A table with headings and rows. The last column takes the rest of the width. A heading may be empty."""

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    indent: int = 0


class Screen:
    """Prints to stdout in the width of the terminal."""

    def __init__(self) -> None:
        self.width = max(NARROWEST, shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns)
        self._styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def line(self, text: str = "", *, bold: bool = False) -> None:
        """Print a paragraph, wrapped between words."""
        for line in textwrap.wrap(printable(text), self.width, break_on_hyphens=False) or [""]:
            self.raw(line, bold=bold)

    def raw(self, text: str, *, bold: bool = False, colour: str | None = None) -> None:
        """Print one line without wrapping it."""
        text = printable(text.rstrip())
        print(click.style(text, bold=bold or None, fg=colour) if self._styled and (bold or colour) else text)

    def facts(self, facts: Iterable[tuple[str, str]], indent: int = 0) -> None:
        """Print names with their values, one below the other."""
        self.table(TextTable(headings=(), rows=tuple(facts), indent=indent))

    def table(self, table: TextTable) -> None:
        """Print a table: title, headings and rows. A table without headings has only rows."""
        margin = " " * table.indent
        if table.title:
            self.raw(margin + table.title, bold=True)
        heading, *lines = layout(table, self.width - table.indent)
        if table.headings:
            self.raw(margin + heading, bold=True)
        for line in lines:
            self.raw(margin + line)


def layout(table: TextTable, width: int) -> tuple[str, ...]:
    """Return the lines of a table: the headings, then the rows. A line is at most `width` characters long, unless the
    columns before the last one need more."""
    rows = [tuple(map(printable, row)) for row in table.rows]
    every = [table.headings, *rows] if table.headings else rows
    widths = [min(width // 2, max(map(_longest_line, column))) for column in zip(*every, strict=True)][:-1]
    rest = width - sum(widths) - len(_GAP) * len(widths)
    lines = [_GAP.join(f"{cell:<{size}}" for cell, size in zip(table.headings, [*widths, 0], strict=False))]
    for row in rows:
        fits = _longest_line(row[-1]) <= rest or rest >= _LEAST_LAST_WIDTH
        lines += _beside(row, [*widths, rest]) if fits else _below(row, widths, width)
    return tuple(lines)


def _longest_line(cell: str) -> int:
    return max(map(len, cell.split("\n")))


def _beside(row: tuple[str, ...], widths: list[int]) -> Iterator[str]:
    cells = [_wrapped(cell, size) for cell, size in zip(row, widths, strict=True)]
    for parts in zip_longest(*cells, fillvalue=""):
        yield _GAP.join(f"{part:<{size}}" for part, size in zip(parts, widths, strict=True))


def _below(row: tuple[str, ...], widths: list[int], width: int) -> Iterator[str]:
    yield from _beside(row[:-1], widths)
    for line in _wrapped(row[-1], width - len(_GAP) * 2):
        yield _GAP * 2 + line


def _wrapped(cell: str, width: int) -> list[str]:
    return [part for line in cell.split("\n") for part in textwrap.wrap(line, width, break_on_hyphens=False) or [""]]


def print_json(document: object) -> None:
    """Print a document as JSON."""
    print(json.dumps(document, indent=2))


def printable(text: str) -> str:
    """Return the text with control characters escaped; a newline stays."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def can_draw(characters: str) -> bool:
    """Return whether stdout can print these characters in its encoding."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def age(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 h 12 min"."""
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86400
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{int(seconds)} s"
