"""Writes a drawing as SVG: one ASCII file without scripts, fonts or references.

No fact is shown by colour alone: each distance class also has its own dashes and its name, and each use of a device its
own border and words. Colour-blind readers can tell the colours apart. The contrast to the background is at least 4.5
for text and 3 for lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from nri_rdma.commands.picture.drawing import (
    STUB,
    TAG_HEIGHT,
    TAG_WIDTH,
    Box,
    Drawing,
    DrawnLine,
    DrawnText,
    Mark,
    Sample,
    ShapeKind,
)
from nri_rdma.commands.picture.words import shown, width_of
from nri_rdma.decide.topology import Distance

_COLOURS = {
    Distance.PIX: "#00705c",
    Distance.PXB: "#2f7fc4",
    Distance.PHB: "#20308f",
    Distance.NODE: "#b86200",
    Distance.SYS: "#6e0f1f",
}
_DASHES = {
    Distance.PIX: "",
    Distance.PXB: "18 5",
    Distance.PHB: "9 5",
    Distance.NODE: "12 4 3 4",
    Distance.SYS: "3 5",
}
_THICK, _THIN = 5, 2
_INK = "#1b2430"
_FRAMES = {
    ShapeKind.NUMA: ("#e4e9f0", "#66758a", 1.5),
    ShapeKind.ROOT: ("#f4f6f9", "#66758a", 1.5),
    ShapeKind.BRIDGE: ("#ffffff", "#66758a", 1.5),
}
_STATES = {
    Mark.FREE: ("#ffffff", "#4a5563", 1.5, ""),
    Mark.HELD: ("#ffe9a8", "#7a5600", 3, ""),
    Mark.HOST: ("#d9dde3", "#4a5563", 1.5, "4 3"),
}
_ROUND = {ShapeKind.GPU: 14, ShapeKind.ADAPTER: 2}


def svg_of(drawing: Drawing) -> str:
    """Return the drawing as SVG text."""
    return "".join(f"{line}\n" for line in _lines(drawing)).encode("ascii", "xmlcharrefreplace").decode()


def _lines(drawing: Drawing) -> Iterator[str]:
    width, height = _number(drawing.width), _number(drawing.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
        ' role="img" aria-labelledby="title description"'
        " font-family=\"'DejaVu Sans Mono', Menlo, 'Liberation Mono', 'Courier New', monospace\""
        f' fill="{_INK}">'
    )
    yield f'<title id="title">{_escaped(drawing.title)}</title>'
    yield f'<desc id="description">{_escaped(drawing.description)}</desc>'
    yield f'<rect class="page" width="{width}" height="{height}" fill="#ffffff"/>'
    for text in drawing.texts:
        yield _text(text)
    for box in drawing.boxes:
        yield from _box(box)
    for line in drawing.lines:
        yield from _line(line)
    for sample in drawing.samples:
        yield from _sample(sample)
    yield "</svg>"


def _box(box: Box) -> Iterator[str]:
    yield f'<g class="{box.kind}" data-name={_quoted(box.name)}>'
    yield f"<title>{_escaped(box.title)}</title>"
    if box.state is None:
        fill, stroke, width = _FRAMES[box.kind]
        dashes = ""
    else:
        fill, stroke, width, dashes = _STATES[box.state]
    yield _rect(box.x, box.y, box.width, box.height, fill, stroke, width, dashes, _ROUND.get(box.kind, 6))
    for text in box.texts:
        yield _text(text)
    yield "</g>"


def _line(line: DrawnLine) -> Iterator[str]:
    distance, bend = line.pair.distance, line.x + STUB
    middle = (bend + line.to_x) / 2
    x, y, to_x, to_y, bend_x, middle_x = map(_number, (line.x, line.y, line.to_x, line.to_y, bend, middle))
    yield (
        f'<g class="pair" data-gpu={_quoted(str(line.pair.gpu.pci))} data-device={_quoted(line.pair.device.name)}'
        f' data-class="{distance.name}">'
    )
    yield f"<title>{_escaped(line.title)}</title>"
    path = f"M{x} {y}H{bend_x}C{middle_x} {y} {middle_x} {to_y} {to_x} {to_y}"
    yield f'<path d="{path}" fill="none" {_stroke(distance, is_thick=bool(line.pair.pods))}/>'
    tag_x, tag_y = line.x + STUB - TAG_WIDTH - 8, line.y - TAG_HEIGHT / 2
    yield _rect(tag_x, tag_y, TAG_WIDTH, TAG_HEIGHT, "#ffffff", _COLOURS[distance], 1.5, "", 4)
    words = DrawnText(x=tag_x + (TAG_WIDTH - width_of(distance.name, 15)) / 2, y=line.y + 5, text=distance.name)
    yield _text(words)
    yield "</g>"


def _sample(sample: Sample) -> Iterator[str]:
    yield '<g class="legend">'
    match sample.shows:
        case Mark() as state:
            fill, stroke, width, dashes = _STATES[state]
            yield _rect(sample.x, sample.y, sample.width, sample.height, fill, stroke, width, dashes, 2)
        case Distance() as distance:
            yield _sample_line(sample, _stroke(distance, is_thick=True))
        case is_thick:
            yield _sample_line(sample, f'stroke="{_INK}" stroke-width="{_THICK if is_thick else _THIN}"')
    yield _text(sample.text)
    yield "</g>"


def _sample_line(sample: Sample, stroke: str) -> str:
    y = _number(sample.y + sample.height / 2)
    return f'<path d="M{_number(sample.x)} {y}H{_number(sample.x + sample.width)}" {stroke}/>'


def _stroke(distance: Distance, *, is_thick: bool) -> str:
    dashes = f' stroke-dasharray="{_DASHES[distance]}"' if _DASHES[distance] else ""
    return f'stroke="{_COLOURS[distance]}" stroke-width="{_THICK if is_thick else _THIN}"{dashes}'


def _rect(
    x: float, y: float, width: float, height: float, fill: str, stroke: str, thickness: float, dashes: str, corner: int
) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" height="{_number(height)}" rx="{corner}"'
        f' fill="{fill}" stroke="{stroke}" stroke-width="{_number(thickness)}"{dashed}/>'
    )


def _text(text: DrawnText) -> str:
    weight = ' font-weight="bold"' if text.is_bold else ""
    anchor = ' text-anchor="end"' if text.at_end else ""
    return (
        f'<text x="{_number(text.x)}" y="{_number(text.y)}" font-size="{text.size}"{weight}{anchor}>'
        f"{_escaped(text.text)}</text>"
    )


def _escaped(text: str) -> str:
    return escape("\n".join(map(shown, text.split("\n"))), quote=False)


def _quoted(text: str) -> str:
    return f'"{escape(shown(text))}"'


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
