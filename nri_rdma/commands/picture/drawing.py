"""The topology picture as values: boxes, lines and texts with their positions. All lengths are in pixels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.commands.picture.view import PicturePair
from nri_rdma.decide.topology import Distance

TITLE_SIZE, NAME_SIZE, SIZE = 26, 18, 15
"""Font sizes. The smallest is still readable when the picture is shown at half its size."""
STUB = 84
"""The length of the straight first part of a line, in which the distance class is written."""
TAG_WIDTH, TAG_HEIGHT = 52, 20


class ShapeKind(StrEnum):
    """The object for which a box of the picture stands. The value is also the box's class in the SVG file."""

    NUMA = "numa"
    ROOT = "root"
    BRIDGE = "bridge"
    GPU = "gpu"
    ADAPTER = "nic"


class Mark(StrEnum):
    """The use of a GPU or adapter: free, held by a pod, or used by the host. An adapter is held if a pod holds one of
    its devices."""

    FREE = "free"
    HELD = "held"
    HOST = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnText:
    """A line of text. (x, y) is the beginning of its baseline; with `at_end`, the end of its baseline."""

    x: float
    y: float
    text: str
    size: int = SIZE
    is_bold: bool = False
    at_end: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle with texts. `title` is its tooltip. `state` is the use of a GPU or adapter; None for a frame, which
    only encloses other boxes."""

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
    """The line between a GPU and an adapter. It leads from the GPU's right edge, first straight, then curved, to the
    adapter's left edge."""

    pair: PicturePair
    gpu: str
    x: float
    y: float
    to_x: float
    to_y: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A symbol in the legend, with the text that explains it."""

    x: float
    y: float
    width: float
    height: float
    text: DrawnText
    shows: Distance | Mark | bool
    """The symbol: a line in the style of a distance class, a box in the style of a use, or a line that is thick (True)
    or thin (False)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """The complete picture. `title` is one line. `description` is the content in words, for people who do not see the
    picture."""

    width: float
    height: float
    title: str
    description: str
    texts: tuple[DrawnText, ...]
    boxes: tuple[Box, ...]
    """The boxes. A frame comes before the boxes that it encloses."""
    lines: tuple[DrawnLine, ...]
    samples: tuple[Sample, ...]
