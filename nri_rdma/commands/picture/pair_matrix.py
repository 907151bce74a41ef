"""Writes measurements between pairs of ports as an SVG matrix: one ASCII file without scripts, fonts or references.

The client's ports are the rows, and the server's ports the columns. A cell shows its result as text and as a bar. A
pair that failed has a dashed border and its error code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from nri_rdma.commands.picture.words import fitted, shown

_WIDTH, _HEIGHT, _MARGIN, _TOP = 132, 58, 16, 84
_NAMES = 132
_SIZE, _SMALL = 15, 12
_INK, _BAR, _FRAME = "#1b2430", "#20308f", "#66758a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The two lines of text for one pair. `part` is its bandwidth as a fraction of the best pair's (0 to 1); None if
    the pair failed."""

    first: str
    second: str
    part: float | None


def svg_of_pairs(
    title: str, words: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Cell]
) -> str:
    """Return the SVG text. `rows` and `columns` are names of ports, and `words` is a sentence that explains the
    numbers. A pair without a cell is left blank."""
    lines = _lines(title, words, rows, columns, cells)
    return "".join(f"{line}\n" for line in lines).encode("ascii", "xmlcharrefreplace").decode()


def _lines(
    title: str, words: str, rows: Sequence[str], columns: Sequence[str], cells: Mapping[tuple[str, str], Cell]
) -> Iterator[str]:
    width = max(2 * _MARGIN + _NAMES + _WIDTH * len(columns), 640)
    height = _TOP + _HEIGHT * len(rows) + _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" aria-labelledby="title description"'
        " font-family=\"'DejaVu Sans Mono', Menlo, 'Liberation Mono', 'Courier New', monospace\""
        f' fill="{_INK}">'
    )
    yield f'<title id="title">{_escaped(title)}</title>'
    yield f'<desc id="description">{_escaped(words)}</desc>'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    yield _text(_MARGIN, 28, _SIZE, title, width - 2 * _MARGIN)
    yield _text(_MARGIN, 48, _SMALL, words, width - 2 * _MARGIN)
    for number, column in enumerate(columns):
        yield _text(_MARGIN + _NAMES + _WIDTH * number + 8, _TOP - 8, _SMALL, column, _WIDTH - 16)
    for line, row in enumerate(rows):
        y = _TOP + _HEIGHT * line
        yield _text(_MARGIN, y + 32, _SMALL, row, _NAMES - 8)
        for number, column in enumerate(columns):
            if (row, column) in cells:
                yield from _cell(_MARGIN + _NAMES + _WIDTH * number, y, row, column, cells[row, column])
    yield "</svg>"


def _cell(x: int, y: int, row: str, column: str, cell: Cell) -> Iterator[str]:
    dashes = ' stroke-dasharray="4 3"' if cell.part is None else ""
    yield f'<g class="pair" data-client="{_escaped(row)}" data-server="{_escaped(column)}">'
    yield f"<title>{_escaped(f'{row} to {column}: {cell.first} {cell.second}')}</title>"
    yield (
        f'<rect x="{x + 2}" y="{y + 2}" width="{_WIDTH - 4}" height="{_HEIGHT - 4}" fill="#ffffff"'
        f' stroke="{_FRAME}"{dashes}/>'
    )
    yield _text(x + 10, y + 22, _SMALL, cell.first, _WIDTH - 20)
    yield _text(x + 10, y + 40, _SMALL, cell.second, _WIDTH - 20)
    if cell.part is not None:
        yield f'<rect x="{x + 10}" y="{y + 46}" width="{(_WIDTH - 20) * cell.part:.1f}" height="5" fill="{_BAR}"/>'
    yield "</g>"


def _text(x: int, y: int, size: int, text: str, width: int) -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}">{_escaped(fitted(text, width, size))}</text>'


def _escaped(text: str) -> str:
    return escape(shown(text))
