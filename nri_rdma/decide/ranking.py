"""Chooses among free devices: the best for this pod, and of equally good ones those that spoil least for the next pod.
Pure.

What is better is decided in this order, exactly (nri_rdma.decide.assignment), over the pairs of a device and the GPU
that it serves:

1. A device that can carry data in the pod. One without an active port is the last choice, unless the pod raises it.
2. For the pod: the fewest pairs beyond a root complex, then the fewest beyond a NUMA node, then the fewest over the
   root complex, then the fewest over several switches. A GPU gets its second device when each has its first.
3. For a request that shares: the device that the fewest pods have, in a pool of shares that stands for the fewest.
4. For pods to come: as 2, for the best that the idle GPUs of the node could still get of what is left. So a pod
   without a GPU takes the device that no GPU will miss.
5. A device whose neighbours are taken comes before one of an intact group: below its switch, its root complex, its NUMA
   node.
6. A GPU gets the device of its own rail.
7. The lowest index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from nri_rdma.decide.assignment import cheapest
from nri_rdma.decide.layout import Layout, Places
from nri_rdma.decide.topology import Distance
from nri_rdma.model.device import DeviceId, Gpu, RdmaDevice
from nri_rdma.model.pci import PciAddress, below_root

_MAX_NEIGHBOURS = 15
"""Most neighbours that count of a group of free devices; larger groups are equal."""
_MAX_INDEX = 4095
_MOST_CELLS = 1 << 13
"""Most cells (rows by columns) that are solved exactly, in 20 ms at most; beyond this each row gets the best that is
left. 16 GPUs and 64 devices of each of 8 adapters are half of that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings that a choice must heed: `idle` are the GPUs that no pod is known to have, without those of the
    pod itself, `rails` those of the devices where they count: the pod has GPUs."""

    layout: Layout
    idle: tuple[Gpu, ...] = ()
    rails: Mapping[DeviceId, int] = field(default_factory=dict)
    load: Mapping[DeviceId, int] = field(default_factory=dict)
    """How many pods have each device already, or for how many shares it stands; empty for a pod that shares nothing."""
    down: frozenset[DeviceId] = frozenset()
    """The devices that cannot carry data in the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A device, and the GPU that it serves."""

    device: RdmaDevice
    gpu: Gpu
    far: Distance


def near_gpus(
    free: Sequence[RdmaDevice],
    count: int,
    gpus: Sequence[Gpu],
    served: Mapping[PciAddress, int],
    around: Surroundings,
) -> list[Pick]:
    """Choose `count` of at least as many free devices for these GPUs, in the order of the GPUs, round by round.
    `served` is the number of devices that each of them has already."""
    rounds = _rounds(gpus, served, count)
    must = [gpu for part in rounds[:-1] for gpu in part]
    may = rounds[-1]
    chosen = _solve(free, must, may, len(must) + len(may) - count, around)
    return [
        Pick(device=device, gpu=gpu, far=around.layout.distance(gpu.pci, device.id))
        for gpu, device in zip((*must, *may), chosen, strict=True)
        if device is not None
    ]


def anywhere(
    free: Sequence[RdmaDevice], count: int, around: Surroundings, penalty: Callable[[RdmaDevice], int] = lambda _: 0
) -> list[RdmaDevice]:
    """Choose `count` of at least as many free devices, the least penalty first and then what spoils least, by index."""
    chosen = _solve(free, [penalty] * count, [], 0, around)
    return sorted((device for device in chosen if device is not None), key=lambda it: (penalty(it), it.index))


def _rounds(gpus: Sequence[Gpu], served: Mapping[PciAddress, int], count: int) -> list[list[Gpu]]:
    """Return the GPUs that get devices in each round: those that have the fewest first. In the last round not all may
    get one."""
    level = min(served.get(gpu.pci, 0) for gpu in gpus)
    rounds: list[list[Gpu]] = []
    while sum(map(len, rounds)) < count:
        rounds.append([gpu for gpu in gpus if served.get(gpu.pci, 0) <= level])
        level += 1
    return rounds


# Costs. A row is what gets a device: a GPU of the pod, a device of the request that is next to nothing, or an idle GPU.
# A column is a device, or a blank: the row gets none.

_Row = Gpu | Callable[[RdmaDevice], int]


def _solve(
    free: Sequence[RdmaDevice], must: Sequence[_Row], may: Sequence[Gpu], blanks: int, around: Surroundings
) -> list[RdmaDevice | None]:
    """Return the device of each row that must have one and of each that may; `blanks` of the latter get none."""
    own = len(must) + len(may)
    if own - blanks == len(free):
        around = replace(around, idle=())  # nothing is left for them
    rows = own + len(around.idle)
    neighbours = dict(zip((device.id for device in free), intactness(free, around.layout.places), strict=True))
    free = _enough(free, rows, must, around)
    scale = _Scale.of(rows, free, around, neighbours)
    if rows * len(free) > _MOST_CELLS:
        return [*_one_by_one(free, [*must, *may][: own - blanks], scale), *[None] * blanks]
    never, without = scale.never, scale.without
    # The columns are the devices, the blanks, and last what any number of idle GPUs may have: none.
    costs = [[*scale.idle(gpu), *[never] * blanks, without] for gpu in around.idle]  # first: they seldom compete
    costs += scale.each_own(must, lambda line: [*line, *[never] * (blanks + 1)])
    costs += scale.each_own(  # the last column: no blank is left
        may, lambda line: [*(it + never for it in line), *[0] * blanks, 2 * never]
    )
    columns = cheapest(costs)[len(around.idle) :]
    return [free[column] if column < len(free) else None for column in columns]


def _enough(free: Sequence[RdmaDevice], rows: int, must: Sequence[_Row], around: Surroundings) -> Sequence[RdmaDevice]:
    """Return as many devices of each kind as there are rows: virtual functions by the hundred are all alike."""
    if len(free) <= rows:
        return free
    penalty = next((row for row in must if not isinstance(row, Gpu)), lambda _: 0)
    kept: Counter[object] = Counter()
    found = []
    for device in free:  # lowest index first
        path = below_root(device.pci_root, device.pci_path)
        rail, load = around.rails.get(device.id), around.load.get(device.id, 0)
        is_down = device.id in around.down
        kind = (device.pci_root or device.id, path[:-1], device.numa_node, rail, load, is_down, penalty(device))
        kept[kind] += 1
        if kept[kind] <= rows:
            found.append(device)
    return found


def _one_by_one(free: Sequence[RdmaDevice], rows: Sequence[_Row], scale: _Scale) -> Iterator[RdmaDevice]:
    """Give each row the best device that is left. For requests of hundreds: an exact solution would delay all pods of
    the node."""
    left = set(range(len(free)))
    for row in rows:
        costs = scale.own(row)
        column = min(left, key=costs.__getitem__)
        left.remove(column)
        yield free[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """Costs of the seven criteria as one number each: a step of one outweighs all steps of the next ones together."""

    free: Sequence[RdmaDevice]
    places: Sequence[int]
    """The place of each device, by number."""
    around: Surroundings
    rows: int
    by_distance: Mapping[Distance, int]
    near: int
    """A step of the second criterion."""
    idle_near: int
    """A step of the fourth."""
    own_costs: tuple[int, ...]
    """The cost of each device by the first, third, fifth and seventh criterion."""
    rail: int

    @classmethod
    def of(
        cls, rows: int, free: Sequence[RdmaDevice], around: Surroundings, neighbours: Mapping[DeviceId, int]
    ) -> _Scale:
        base = rows + 1
        by_distance = {
            Distance.PIX: 0,
            Distance.PXB: 1,
            Distance.PHB: base,
            Distance.NODE: base**3,
            Distance.SYS: base**3 + base**2,
        }
        index = (_MAX_INDEX + 1) * base
        rail = index
        group = rail * base
        idle_near = group * (_MAX_NEIGHBOURS + 1) ** 3 * base
        farthest = (by_distance[Distance.SYS] + 1) * base
        load = idle_near * farthest
        loads = [around.load.get(device.id, 0) for device in free]
        near = load * (max(loads, default=0) + 1) * base
        down = near * farthest
        own_costs = tuple(
            (device.id in around.down) * down
            + loaded * load
            + neighbours[device.id] * group
            + min(device.index, _MAX_INDEX)
            for device, loaded in zip(free, loads, strict=True)
        )
        return cls(
            free=free,
            places=[around.layout.places.of[device.id] for device in free],
            around=around,
            rows=rows,
            by_distance=by_distance,
            near=near,
            idle_near=idle_near,
            own_costs=own_costs,
            rail=rail,
        )

    @property
    def never(self) -> int:
        """A cost above everything that all rows together can cost otherwise."""
        return self.near * ((self.by_distance[Distance.SYS] + 1) * (self.rows + 1)) ** 2

    @property
    def without(self) -> int:
        """The cost of an idle GPU that would get no device: the farthest distance."""
        return self.idle_near * self.by_distance[Distance.SYS]

    def each_own(self, rows: Iterable[_Row], whole: Callable[[list[int]], list[int]]) -> Iterator[list[int]]:
        """Return the costs `own` of each row, made `whole`, once for equal rows: a GPU in several rounds, a pod without
        one."""
        known: dict[int, list[int]] = {}
        for row in rows:
            if id(row) not in known:
                known[id(row)] = whole(self.own(row))
            yield known[id(row)]

    def own(self, row: _Row) -> list[int]:
        """Return the costs of each device for a row of the pod."""
        if not isinstance(row, Gpu):
            return [row(device) * self.near + cost for device, cost in zip(self.free, self.own_costs, strict=True)]
        rails, own_rail = self.around.rails, self.around.layout.rail_of_gpu.get(row.pci)
        return [
            far + (0 if rails.get(device.id) == own_rail else self.rail) + cost
            for far, device, cost in zip(self._far(row, self.near), self.free, self.own_costs, strict=True)
        ]

    def idle(self, gpu: Gpu) -> list[int]:
        """Return the costs of each device when an idle GPU gets it; one that cannot carry data is as good as none."""
        far = self._far(gpu, self.idle_near)
        if not self.around.down:
            return far
        return [
            self.without if device.id in self.around.down else cost for device, cost in zip(self.free, far, strict=True)
        ]

    def _far(self, gpu: Gpu, step: int) -> list[int]:
        """Return the costs of each device's distance from a GPU, by the criterion with that step."""
        costs = {far: cost * step for far, cost in self.by_distance.items()}
        far = self.around.layout.far[gpu.pci]
        return [costs[far[place]] for place in self.places]


def intactness(free: Sequence[RdmaDevice], places: Places) -> list[int]:
    """Return how intact the groups of each device are: other free devices below its switch, below its root complex, on
    its NUMA node."""
    of_each = [places.groups[places.of[device.id]] for device in free]
    others = {it: min(_MAX_NEIGHBOURS, size - 1) for it, size in Counter(chain.from_iterable(of_each)).items()}
    step = _MAX_NEIGHBOURS + 1
    return [(others[switch] * step + others[root]) * step + others[numa_node] for switch, root, numa_node in of_each]
