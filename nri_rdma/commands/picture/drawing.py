"""A picture of a node's topology as values: boxes, lines and texts with their places. All lengths are in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.commands.picture.view import PicturePair
from nri_rdma.decide.topology import Distance

TITLE_SIZE, NAME_SIZE, SIZE = 26, 18, 15
"""Sizes of type: at half its size the smallest is still read."""
STUB = 84
"""The straight beginning of a line, on which its class is written."""
TAG_WIDTH, TAG_HEIGHT = 52, 20


class ShapeKind(StrEnum):
    """The kind of a box."""

    NUMA = "numa"
    ROOT = "root"
    BRIDGE = "bridge"
    GPU = "gpu"
    ADAPTER = "nic"


class Mark(StrEnum):
    """The holder of a GPU or an adapter. An adapter is held when one of its devices is."""

    FREE = "free"
    HELD = "held"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnText:
    """A line of text; (x, y) is where its baseline begins, or ends when it stands `at_end`."""

    x: float
    y: float
    text: str
    size: int = SIZE
    is_bold: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with texts; `title` is what a reader is told who points at it. Frames have no state."""

    kind: ShapeKind
    name: str
    x: float
    y: float
    width: float
    height: float
    texts: tuple[DrawnText, ...]
    title: str
    state: Mark | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLine:
    """A pair: from the right of a GPU, straight for a stub, then in a curve to the left of an adapter."""

    pair: PicturePair
    gpu: str
    x: float
    y: float
    to_x: float
    to_y: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A symbol that the legend explains with `text`: the line of a distance, how thick a line is, or the box of a
    state."""

    x: float
    y: float
    width: float
    height: float
    text: DrawnText
    shows: Distance | Mark | bool
    """A bool is whether a line is thick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """All of a picture. `title` is one line, `description` says in words what is to be seen."""

    width: float
    height: float
    title: str
    description: str
    texts: tuple[DrawnText, ...]
    boxes: tuple[Box, ...]
    """Frames before what is in them."""
    lines: tuple[DrawnLine, ...]
    samples: tuple[Sample, ...]
