"""The file of a picture is plain, legible and the same for the same node."""

from __future__ import annotations

from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node
from tests.unit.commands.picture.drawn import svg
from tests.unit.commands.picture.jobs import JOBS
from tests.unit.commands.picture.machines import held, switched
from tests.unit.commands.picture.pictures import FRAMES, contrast, read


def test_texts_and_lines_are_told_from_what_is_behind_them(machine: tuple[Node, Taken]) -> None:
    text = svg(*machine)
    ink = text.partition(' fill="')[2][:7]
    picture = read(text)
    fills = {
        "#ffffff",
        *(block.fill for block in picture.blocks),
        *(it["fill"] for _, it in picture.legend if "rx" in it),
    }
    assert min(contrast(ink, fill) for fill in fills) >= 4.5
    behind = {"#ffffff", *(block.fill for block in picture.of(*FRAMES))}
    strokes = {line.colour for line in picture.lines} | {it["stroke"] for _words, it in picture.legend}
    assert min(contrast(stroke, fill) for stroke in strokes for fill in behind) >= 3


def test_the_file_is_plain(machine: tuple[Node, Taken]) -> None:
    text = svg(*machine)
    assert text.isascii()
    for word in ("<script", "href", "url(", "<style", "<image", "<foreignObject", "\x1b"):
        assert word not in text


def test_the_same_node_is_the_same_file() -> None:
    node = switched()
    backwards = dict(reversed(list(held(node, JOBS).items())))
    assert svg(node, held(node, JOBS)) == svg(node, backwards)
