"""What a terminal is given: plain tables as wide as it is, colour only where it is wanted.

Every text goes through `printable`: device names, pod names and errors are not ours, and a terminal obeys what it reads.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120
NARROWEST = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under headings; the last column takes what is left of the width, and wraps."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    indent: int = 0


class Screen:
    """Prints to stdout. Rich is imported here, when there is something to print."""

    def __init__(self) -> None:
        self.width = max(NARROWEST, shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns)
        self._console = _console(self.width)

    def line(self, text: str = "", style: str = "") -> None:
        """One paragraph, wrapped at words."""
        from rich.text import Text

        self._console.print(Text(printable(text), style=style))

    def raw(self, text: str, style: str = "") -> None:
        """A line that fits already; wrapped or padded it would lose its picture."""
        from rich.text import Text

        self._console.print(Text(printable(text), style=style, no_wrap=True, overflow="ignore"), crop=False)

    def facts(self, facts: Iterable[tuple[str, str]], indent: int = 0) -> None:
        """Names and what they are, one below the other."""
        self._grid((), tuple(facts), indent)

    def table(self, table: Table) -> None:
        """A title and a table."""
        if table.title:
            self.raw(" " * table.indent + table.title, style="bold")
        self._grid(table.headings, table.rows, table.indent)

    def _grid(self, headings: Sequence[str], rows: Sequence[tuple[str, ...]], indent: int) -> None:
        from rich import table as rich_table
        from rich.padding import Padding
        from rich.text import Text

        columns = len(rows[0]) if rows else len(headings)
        grid = rich_table.Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=bool(headings))
        for number in range(columns):
            heading = headings[number] if headings else ""
            grid.add_column(
                Text(heading, style="bold"), overflow="fold", no_wrap=number < columns - 1, max_width=self.width // 2
            ) if number < columns - 1 else grid.add_column(Text(heading, style="bold"), overflow="fold")
        for row in rows:
            grid.add_row(*(Text(printable(cell)) for cell in row))
        self._console.print(Padding(grid, (0, 0, 0, indent), expand=False))


def print_json(document: object) -> None:
    """A document for programs, on stdout."""
    click.echo(json.dumps(document, indent=2))


def printable(text: str) -> str:
    """Without what would move the cursor or colour the rest of the screen."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )


def can_draw(characters: str) -> bool:
    """Whether stdout can show them."""
    try:
        characters.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True


def _console(width: int) -> Console:
    """A console without any style where stdout is no terminal or the user does not want colour (no-color.org)."""
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return Console(
        width=width,
        color_system=None if plain else "standard",
        force_terminal=False if plain else None,
        markup=False,
        highlight=False,
        emoji=False,
    )
