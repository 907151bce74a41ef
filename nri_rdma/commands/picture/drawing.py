"""The topology picture as values: boxes, lines and texts with their positions. All lengths are in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.commands.picture.view import PicturePair
from nri_rdma.decide.topology import Distance

TITLE_SIZE, NAME_SIZE, SIZE = 26, 18, 15
"""Font sizes. The smallest is still readable when the picture is shown at half its size."""
STUB = 84
"""The length of the straight beginning of a line, where its distance class is written."""
TAG_WIDTH, TAG_HEIGHT = 52, 20


class ShapeKind(StrEnum):
    """The kind of a box."""

    NUMA = "numa"
    ROOT = "root"
    BRIDGE = "bridge"
    GPU = "gpu"
    ADAPTER = "nic"


class Mark(StrEnum):
    """The use of a GPU or adapter: free, held by a pod, or used by the host. An adapter is held if one of its devices
    is."""

    FREE = "free"
    HELD = "held"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnText:
    """A line of text. (x, y) is the beginning of its baseline, or its end if `at_end` is set."""

    x: float
    y: float
    text: str
    size: int = SIZE
    is_bold: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with texts. `title` is its tooltip. `state` is None for frames, which only enclose other boxes."""

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
    """The line of a GPU and an adapter: from the GPU's right edge, first straight, then curved, to the adapter's left
    edge."""

    pair: PicturePair
    gpu: str
    x: float
    y: float
    to_x: float
    to_y: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A symbol in the legend with the text that explains it: a line of a distance class, a line of a thickness, or a
    box of a state."""

    x: float
    y: float
    width: float
    height: float
    text: DrawnText
    shows: Distance | Mark | bool
    """The meaning of the symbol. A bool stands for the thickness of a line: True if it is thick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The complete picture. `title` is one line; `description` says the content in words, for readers who do not see
    it."""

    width: float
    height: float
    title: str
    description: str
    texts: tuple[DrawnText, ...]
    boxes: tuple[Box, ...]
    """A frame comes before the boxes that it encloses."""
    lines: tuple[DrawnLine, ...]
    samples: tuple[Sample, ...]
