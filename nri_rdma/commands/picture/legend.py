"""The legend below the topology picture, which explains its lines and boxes."""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.commands.picture.drawing import DrawnText, Mark, Sample
from nri_rdma.decide.topology import Distance

_ROW = 27
_WIDTH, _HEIGHT = 72, 18
_COLUMN = 372
_STATES = (
    (Mark.HELD, "a pod has it, or a part"),
    (Mark.FREE, "free, or nobody is known to have it"),
    (Mark.HOST, "the host uses it"),
)
_THICKNESS = ((True, "one pod has both"), (False, "nearest of a GPU that no pod is known to have"))


def legend(x: float, y: float, *, has_pairs: bool) -> Iterator[Sample]:
    """Yield the legend's symbols with their texts, from (x, y) downwards. `has_pairs`: the picture has lines, which
    need an explanation, too."""
    if has_pairs:
        yield from (_sample(x, y, row, shows, shows.words) for row, shows in enumerate(Distance))
        yield from (_sample(x + _COLUMN, y, row, shows, text) for row, (shows, text) in enumerate(_THICKNESS))
        x, y = x + _COLUMN, y + _ROW * len(_THICKNESS)
    yield from (_sample(x, y, row, shows, text) for row, (shows, text) in enumerate(_STATES))


def _sample(x: float, y: float, row: int, shows: Distance | Mark | bool, text: str) -> Sample:
    top = y + row * _ROW
    words = DrawnText(x=x + _WIDTH + 14, y=top + _HEIGHT - 4, text=text)
    return Sample(x=x, y=top, width=_WIDTH, height=_HEIGHT, text=words, shows=shows)
