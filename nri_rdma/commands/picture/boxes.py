"""Makes the boxes of the topology picture, each as large as its text needs. nri_rdma.commands.picture.positions then
moves them to their final positions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from nri_rdma.commands.picture.drawing import NAME_SIZE, SIZE, TAG_HEIGHT, Box, DrawnText, Mark, ShapeKind
from nri_rdma.commands.picture.tree import Branch, Level
from nri_rdma.commands.picture.view import Adapter, View, gpu_name
from nri_rdma.commands.picture.words import (
    adapter_facts,
    adapter_lines,
    adapter_title,
    count_of,
    fitted,
    gpu_facts,
    gpu_title,
    width_of,
)
from nri_rdma.model.device import Gpu

PAD = 12
GPU_WIDTH, ADAPTER_WIDTH = 272, 352
NAME_COLUMNS = {Level.NUMA: 118, Level.ROOT: 124, Level.BRIDGE: 140}
"""The width of the column at a frame's left edge in which the frame's name is written, by the frame's level."""
_LINE = 20
_BASELINE = 28
"""The distance from a box's top to the baseline of its first line of text, which is the box's name."""
_USUAL_LINES = 2
"""The number of lines below the name for which each box has room at least, so that boxes of GPUs and adapters in a row
are equally high."""


def frame(branch: Branch, x: float, y: float, width: float, height: float) -> Box:
    """Return the frame for a branch of the PCI tree. The frame encloses everything on that branch."""
    above, name, title = _frame_words(branch)
    size = NAME_SIZE if branch.level is Level.NUMA else SIZE
    room = NAME_COLUMNS[branch.level] - PAD
    texts = (
        DrawnText(x=x + PAD, y=y + _BASELINE, text=above),
        DrawnText(x=x + PAD, y=y + _BASELINE + _LINE + 2, text=fitted(name, room, size), size=size, is_bold=True),
    )
    kind = ShapeKind(branch.level.value)
    return Box(kind=kind, name=branch.name, x=x, y=y, width=width, height=height, texts=texts, title=title)


def gpu_box(view: View, gpu: Gpu, x: float) -> Box:
    """Return the box of a GPU, at first at the top of the page. It is high enough for the labels of all lines that
    begin at it. `x` is its left edge."""
    name, owners = gpu_name(view.gpus.index(gpu)), view.owners.get(gpu.pci, ())
    lines = sum(pair.gpu is gpu for pair in view.pairs)
    pods = owners if len(owners) <= 1 else (count_of(len(owners), "pod"),)
    box = _leaf(ShapeKind.GPU, name, "", (gpu_facts(gpu), *pods), x, GPU_WIDTH)
    return replace(
        box,
        height=max(box.height, lines * (TAG_HEIGHT + 4) + PAD),
        title=gpu_title(name, gpu, owners),
        state=Mark.HELD if owners else Mark.FREE,
    )


def adapter_box(view: View, adapter: Adapter, x: float) -> Box:
    """Return the box of an adapter, at first at the top of the page. It is high enough for all lines that end at it.
    `x` is its left edge."""
    rail = "" if adapter.rail is None else f"rail {adapter.rail}"
    lines = sum(pair.adapter.id == adapter.id for pair in view.pairs)
    words = (adapter_facts(adapter), *adapter_lines(view, adapter))
    box = _leaf(ShapeKind.ADAPTER, adapter.head.name, rail, words, x, ADAPTER_WIDTH)
    return replace(
        box,
        height=max(box.height, lines * 8 + PAD),
        title=adapter_title(view, adapter),
        state=_state(view, adapter),
    )


def moved(box: Box, y: float) -> Box:
    """Return the box and its texts, moved up or down so that the box's top is at `y`."""
    texts = tuple(replace(text, y=text.y - box.y + y) for text in box.texts)
    return replace(box, y=y, texts=texts)


def _frame_words(branch: Branch) -> tuple[str, str, str]:
    """Return the texts of a branch's frame: the line above the name, the name, and the tooltip."""
    match branch.level:
        case Level.NUMA:
            title = f"NUMA node {branch.name}" if branch.name else "the kernel tells no NUMA node"
            return "NUMA node", branch.name or "unknown", title
        case Level.ROOT if not branch.name:
            return "not on", "PCI", "devices without a PCI function"
        case Level.ROOT:
            return "PCI root", branch.name, f"PCI root complex {branch.name}"
        case Level.BRIDGE:
            return "switch", branch.name, f"PCI switch or bridge {branch.name}"


def _leaf(kind: ShapeKind, name: str, beside: str, lines: Iterable[str], x: float, width: float) -> Box:
    room = width - 2 * PAD
    taken = width_of(beside, SIZE) + PAD if beside else 0
    texts = [
        DrawnText(x=x + PAD, y=_BASELINE, text=fitted(name, room - taken, NAME_SIZE), size=NAME_SIZE, is_bold=True),
        *([DrawnText(x=x + width - PAD, y=_BASELINE, text=beside, at_end=True)] if beside else []),
    ]
    y = _BASELINE
    for line in lines:
        y += _LINE
        texts.append(DrawnText(x=x + PAD, y=y, text=fitted(line, room, SIZE)))
    bottom = max(y, _BASELINE + _USUAL_LINES * _LINE) + PAD
    return Box(kind=kind, name=name, x=x, y=0, width=width, height=bottom, texts=tuple(texts), title="")


def _state(view: View, adapter: Adapter) -> Mark:
    if any(device.id in view.holdings for device in adapter.devices):
        return Mark.HELD
    return Mark.FREE if any(map(view.is_free, adapter.devices)) else Mark.HOST
