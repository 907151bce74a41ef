"""Computes the positions of everything in the topology picture.

From left to right the picture has NUMA nodes, PCI root complexes, switches, GPUs and RDMA devices. Each branch of the
PCI tree is a frame around everything below it, with the branch's name in a column at the left. GPUs and RDMA devices
are in two columns that all frames share. The gap between these columns contains only the lines from GPUs to RDMA
devices. Each line has its distance class written where it leaves the GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from nri_rdma.commands.picture.boxes import (
    ADAPTER_WIDTH,
    GPU_WIDTH,
    NAME_COLUMNS,
    PAD,
    adapter_box,
    frame,
    gpu_box,
    moved,
)
from nri_rdma.commands.picture.drawing import NAME_SIZE, SIZE, TITLE_SIZE, Box, Drawing, DrawnLine, DrawnText
from nri_rdma.commands.picture.legend import legend
from nri_rdma.commands.picture.tree import Branch, Level, tree_of
from nri_rdma.commands.picture.view import PicturePair, View, gpu_name
from nri_rdma.commands.picture.words import count_of, wrapped
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pci import PciAddress

_MARGIN = 24
_LINE = 20
_BETWEEN = 230
"""The width of the gap between the column of GPUs and the column of RDMA devices, in which the lines are drawn."""
_LEAST_WIDTH = 720
_INSET = 10
"""The distance between a frame's edge and its content."""


def drawing_of(view: View, notes: Iterable[str] = ()) -> Drawing:
    """Return the picture of a node. `notes` are sentences written at the top, such as what is missing or doubtful."""
    tree = tree_of(view)
    columns = _Columns.of(view, max((branch.depth for branch in tree), default=1))
    texts = list(_head((_summary(view), *notes), columns.width))
    y = texts[-1].y + _LINE
    if tree:
        y += NAME_SIZE
        texts += _headings(view, columns, y)
        y += _INSET
    sheet = _Sheet(view=view, columns=columns)
    for branch in tree:
        y = sheet.add(branch, y, 0) + PAD
    lines = tuple(_lines(view, sheet))
    samples = tuple(legend(_MARGIN, y + _LINE, has_pairs=bool(lines)))
    return Drawing(
        width=columns.width,
        height=max(sample.y + sample.height for sample in samples) + _MARGIN,
        title=f"RDMA topology: {_summary(view)}",
        description=" ".join(_sentence(line) for line in lines),
        texts=tuple(texts),
        boxes=tuple(sheet.boxes),
        lines=lines,
        samples=samples,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Columns:
    """The left edges of the columns. `frames` are the left and right edges of the frames at each depth of the tree."""

    frames: tuple[tuple[float, float], ...]
    gpu: float
    adapter: float
    width: float

    @classmethod
    def of(cls, view: View, depth: int) -> _Columns:
        lefts = [float(_MARGIN)]
        for level in (Level.NUMA, Level.ROOT, *[Level.BRIDGE] * (depth - 1)):
            lefts.append(lefts[-1] + NAME_COLUMNS[level])
        gpu = lefts.pop()
        adapter = gpu + GPU_WIDTH + _BETWEEN if view.gpus else gpu
        right = adapter + ADAPTER_WIDTH
        rights = [right + _INSET * (len(lefts) - place) for place in range(len(lefts))]
        width = max(rights[0] + _MARGIN, _LEAST_WIDTH)
        return cls(frames=tuple(zip(lefts, rights, strict=True)), gpu=gpu, adapter=adapter, width=width)


@dataclass(slots=True, kw_only=True)
class _Sheet:
    """The page, which is filled with boxes from the top down."""

    view: View
    columns: _Columns
    boxes: list[Box] = field(default_factory=list)
    gpus: dict[PciAddress, Box] = field(default_factory=dict)
    adapters: dict[DeviceId, Box] = field(default_factory=dict)

    def add(self, branch: Branch, top: float, depth: int) -> float:
        """Place the branch with its top at `top`, and return the y coordinate of its bottom."""
        place, y = len(self.boxes), top
        if branch.gpus or branch.adapters:
            y = self._add_leaves(branch, y + _INSET)
        for below in branch.branches:
            y = self.add(below, y + _INSET, depth + 1)
        bottom = y + _INSET
        left, right = self.columns.frames[depth]
        self.boxes.insert(place, frame(branch, left, top, right - left, bottom - top))
        return bottom

    def _add_leaves(self, branch: Branch, top: float) -> float:
        """Place the branch's GPUs and adapters in their columns, the shorter stack centred beside the longer one.
        Returns the y coordinate below them."""
        gpus = [gpu_box(self.view, gpu, self.columns.gpu) for gpu in branch.gpus]
        adapters = [adapter_box(self.view, adapter, self.columns.adapter) for adapter in branch.adapters]
        height = max(_height(gpus), _height(adapters))
        gpus = list(_stacked(gpus, top + (height - _height(gpus)) / 2))
        adapters = list(_stacked(adapters, top + (height - _height(adapters)) / 2))
        self.gpus.update((gpu.pci, box) for gpu, box in zip(branch.gpus, gpus, strict=True))
        self.adapters.update((it.id, box) for it, box in zip(branch.adapters, adapters, strict=True))
        self.boxes += [*gpus, *adapters]
        return top + height


def _height(boxes: Iterable[Box]) -> float:
    return sum(box.height + _INSET for box in boxes) - _INSET


def _stacked(boxes: Iterable[Box], top: float) -> Iterator[Box]:
    for box in boxes:
        yield moved(box, top)
        top += box.height + _INSET


def _lines(view: View, sheet: _Sheet) -> Iterator[DrawnLine]:
    """Yield the lines. At each box, the ends of lines are in the order of the boxes at their other ends, so that few
    lines cross."""
    from_gpu, to_adapter = _ends(view, sheet)
    for pair in view.pairs:
        key = (pair.gpu.pci, pair.adapter.id)
        gpu, adapter = sheet.gpus[pair.gpu.pci], sheet.adapters[pair.adapter.id]
        yield DrawnLine(
            pair=pair,
            gpu=gpu.name,
            x=gpu.x + gpu.width,
            y=from_gpu[key],
            to_x=adapter.x,
            to_y=to_adapter[key],
            title=_pair_title(view, pair),
        )


_Ends = dict[tuple[PciAddress, DeviceId], float]


def _ends(view: View, sheet: _Sheet) -> tuple[_Ends, _Ends]:
    from_gpu: _Ends = {}
    to_adapter: _Ends = {}
    for address, box in sheet.gpus.items():
        pairs = [pair for pair in view.pairs if pair.gpu.pci == address]
        pairs.sort(key=lambda pair: sheet.adapters[pair.adapter.id].y)
        from_gpu.update(((address, pair.adapter.id), y) for pair, y in zip(pairs, _dealt(box, len(pairs)), strict=True))
    for adapter, box in sheet.adapters.items():
        pairs = [pair for pair in view.pairs if pair.adapter.id == adapter]
        pairs.sort(key=lambda pair: sheet.gpus[pair.gpu.pci].y)
        to_adapter.update(((pair.gpu.pci, adapter), y) for pair, y in zip(pairs, _dealt(box, len(pairs)), strict=True))
    return from_gpu, to_adapter


def _dealt(box: Box, count: int) -> list[float]:
    return [box.y + box.height * (place + 0.5) / count for place in range(count)]


def _pair_title(view: View, pair: PicturePair) -> str:
    both = f"{gpu_name(view.gpus.index(pair.gpu))} and {pair.device.name}: {pair.distance.words}"
    if pair.pods:
        return f"{both}; {', '.join(pair.pods)} {'has' if len(pair.pods) == 1 else 'have'} both"
    return f"{both}; the nearest of this GPU"


def _head(sentences: Iterable[str], width: float) -> Iterator[DrawnText]:
    y = float(_MARGIN + TITLE_SIZE)
    yield DrawnText(x=_MARGIN, y=y, text="RDMA topology", size=TITLE_SIZE, is_bold=True)
    y += 8
    for sentence in sentences:
        for line in wrapped(sentence, width - 2 * _MARGIN, SIZE):
            y += _LINE
            yield DrawnText(x=_MARGIN, y=y, text=line)


def _headings(view: View, columns: _Columns, y: float) -> Iterator[DrawnText]:
    if view.gpus:
        yield DrawnText(x=columns.gpu, y=y, text="GPUs", size=NAME_SIZE, is_bold=True)
    if view.adapters:
        yield DrawnText(x=columns.adapter, y=y, text="RDMA devices", size=NAME_SIZE, is_bold=True)


def _summary(view: View) -> str:
    devices = [device for adapter in view.adapters for device in adapter.devices]
    parts = [count_of(len(view.gpus), "GPU"), count_of(len(devices), "RDMA device")]
    if view.holdings:
        parts.append(f"{len(view.holdings)} held by pods")
    if split := sum(map(view.is_split, devices)):
        parts.append(f"{split} with virtual functions")
    if used := sum(device.id not in view.holdings and bool(device.uses) for device in devices) - split:
        parts.append(f"{used} used by the host")
    words = ", ".join(parts)
    return f"{words[0].upper()}{words[1:]}."


def _sentence(line: DrawnLine) -> str:
    return f"{line.title}."
