"""A picture read from its SVG by means of its own: what is drawn where, in which colours, with which words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from nri_rdma.model.device import Gpu, RdmaDevice

_SVG = "{http://www.w3.org/2000/svg}"
_PATH = re.compile(r"M(\S+) (\S+)H(\S+)C(\S+) \S+ \S+ \S+ (\S+) (\S+)")
FRAMES, LEAVES = ("numa", "root", "bridge"), ("gpu", "nic")


@dataclass(frozen=True)
class Area:
    """A rectangle of the picture."""

    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Area) -> bool:
        return (
            self.left <= other.left
            and self.top <= other.top
            and other.right <= self.right
            and other.bottom <= self.bottom
        )

    def meets(self, other: Area) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


@dataclass(frozen=True)
class Words:
    """A text with the area that it may take: monospaced type of 0.61 of its size, 2 cells for a wide character."""

    text: str
    area: Area
    size: float


@dataclass(frozen=True)
class Block:
    """A box: its class, what it stands for, its texts, and the title that a pointer shows."""

    kind: str
    name: str
    area: Area
    words: tuple[Words, ...]
    title: str
    fill: str
    stroke: str

    @property
    def lines(self) -> list[str]:
        return [word.text for word in self.words]


@dataclass(frozen=True)
class Drawn:
    """The line of a pair, with the area of its written class."""

    gpu: str
    device: str
    distance: str
    start: tuple[float, float]
    bend: float
    end: tuple[float, float]
    tag: Area
    words: Words
    title: str
    colour: str
    dashes: str
    thickness: float


@dataclass(frozen=True)
class Picture:
    """Everything in it."""

    page: Area
    blocks: tuple[Block, ...]
    lines: tuple[Drawn, ...]
    legend: tuple[tuple[str, dict[str, str]], ...]
    """Words, and the attributes of the sample beside them."""
    words: tuple[Words, ...]
    """All of it."""

    def of(self, *kinds: str) -> list[Block]:
        return [block for block in self.blocks if block.kind in kinds]

    def block(self, name: str) -> Block:
        return next(block for block in self.blocks if block.name == name and block.kind in LEAVES)


def read(svg: str) -> Picture:
    """The picture of a file, which has to be well-formed."""
    root = ElementTree.fromstring(svg)
    groups = [(group.get("class", ""), group) for group in root.iter(f"{_SVG}g")]
    return Picture(
        page=Area(0, 0, float(root.get("width", "")), float(root.get("height", ""))),
        blocks=tuple(_block(kind, group) for kind, group in groups if kind in FRAMES + LEAVES),
        lines=tuple(_drawn(group) for kind, group in groups if kind == "pair"),
        legend=tuple(_sample(group) for kind, group in groups if kind == "legend"),
        words=tuple(_words(root)),
    )


def class_by_paths(gpu: Gpu, device: RdmaDevice) -> str:
    """What nvidia-smi would say, from the bridges that stand between the two: one switch has two ports between them, a
    port of each side."""
    if not gpu.pci_root or gpu.pci_root != device.pci_root:
        return "NODE" if gpu.numa_node is not None and gpu.numa_node == device.numa_node else "SYS"
    ways = [[part for part in it.pci_path if not part.startswith("pci")][:-1] for it in (gpu, device)]
    common = [bridge for bridge in ways[0] if bridge in ways[1]]
    own = [[bridge for bridge in way if bridge not in common] for way in ways]
    if not common:
        return "PHB"
    return "PIX" if len(own[0]) <= 1 and len(own[1]) <= 1 else "PXB"


def contrast(one: str, other: str) -> float:
    """Of two colours, as WCAG 2 defines it: 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _block(kind: str, group: ElementTree.Element) -> Block:
    rect = _only(group, "rect")
    return Block(
        kind=kind,
        name=group.get("data-name", ""),
        area=_area(rect),
        words=tuple(_words(group)),
        title=_only(group, "title").text or "",
        fill=rect.get("fill", ""),
        stroke=rect.get("stroke", ""),
    )


def _drawn(group: ElementTree.Element) -> Drawn:
    path = _only(group, "path")
    match = _PATH.fullmatch(path.get("d", ""))
    assert match is not None, path.get("d")
    x, y, bend, _middle, to_x, to_y = map(float, match.groups())
    return Drawn(
        gpu=group.get("data-gpu", ""),
        device=group.get("data-device", ""),
        distance=group.get("data-class", ""),
        start=(x, y),
        bend=bend,
        end=(to_x, to_y),
        tag=_area(_only(group, "rect")),
        words=next(_words(group)),
        title=_only(group, "title").text or "",
        colour=path.get("stroke", ""),
        dashes=path.get("stroke-dasharray", ""),
        thickness=float(path.get("stroke-width", "")),
    )


def _sample(group: ElementTree.Element) -> tuple[str, dict[str, str]]:
    shape = next(child for child in group if child.tag in {f"{_SVG}path", f"{_SVG}rect"})
    return next(_words(group)).text, dict(shape.attrib)


def _area(rect: ElementTree.Element) -> Area:
    x, y, width, height = (float(rect.get(name, "")) for name in ("x", "y", "width", "height"))
    return Area(x, y, x + width, y + height)


def _words(element: ElementTree.Element) -> Iterator[Words]:
    for text in element.iter(f"{_SVG}text"):
        content, size = text.text or "", float(text.get("font-size", ""))
        cells = sum(2 if unicodedata.east_asian_width(char) in ("W", "F") else 1 for char in content)
        width = cells * 0.61 * size
        x, y = float(text.get("x", "")), float(text.get("y", ""))
        left = x - width if text.get("text-anchor") == "end" else x
        yield Words(text=content, area=Area(left, y - 0.8 * size, left + width, y + 0.25 * size), size=size)


def _only(group: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = group.findall(f"{_SVG}{tag}")
    assert len(found) == 1, f"{len(found)} {tag} in a group"
    return found[0]
