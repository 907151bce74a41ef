"""Chooses among free devices: the best for this pod, and among equally good ones those that leave the most to later
pods. Pure.

The order of criteria is fixed and applied exactly (nri_rdma.decide.assignment), over all pairs of a device and the GPU
that it serves:

1. The device can carry data in the pod. A device without an active port is the last choice, unless the pod will bring
   its port up.
2. For the pod: the fewest pairs on different root complexes, then the fewest on different NUMA nodes, then the fewest
   across the root complex, then the fewest across several switches. Each GPU gets one device before any gets two.
3. For a shared request: the device that the fewest pods have, or that serves the fewest shares (ids that the kubelet
   allocates).
4. For later pods: criterion 2 for the node's idle GPUs and the devices that are left. A pod without a GPU therefore
   gets a device that no GPU will miss.
5. Few devices near the device (below its switch, its root complex, on its NUMA node) are free, so that groups of free
   devices stay whole.
6. The device is on the rail of its GPU. A rail is the rank of a port on its node; the fabric connects equal ranks.
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
"""The most free neighbours of a device that are counted; more neighbours make no difference."""
_MAX_INDEX = 4095
_MOST_CELLS = 1 << 13
"""The most cells (rows by columns) of a cost matrix that is solved exactly, which takes 20 ms at most. In a larger
matrix each row in turn takes the best device that is left. 16 GPUs and 64 devices of each of 8 adapters need half of
this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The facts about the node that a choice takes into account. `idle` are the GPUs that neither this pod nor another
    one is known to have. `rails` has the rail of each device (the rank of its port on the node); it is empty if the pod
    has no GPU."""

    layout: Layout
    idle: tuple[Gpu, ...] = ()
    rails: Mapping[DeviceId, int] = field(default_factory=dict)
    load: Mapping[DeviceId, int] = field(default_factory=dict)
    """The number of pods, or of shares (ids that the kubelet allocates), that already have each device; empty for an
    exclusive request."""
    down: frozenset[DeviceId] = frozenset()
    """The devices that cannot carry data in the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """A chosen device and the GPU that it serves."""

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
    """Choose `count` of the free devices for these GPUs; at least `count` devices must be free. The GPUs that have the
    fewest devices get one each, then the next round begins, always in the order of the GPUs. `served` is the number of
    devices that each GPU has already."""
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
    """Choose `count` of the free devices for a request without GPUs; at least `count` devices must be free. Devices
    with a small penalty are preferred; among equal penalties, the devices that later pods need least. The result is
    sorted by penalty, then by index."""
    chosen = _solve(free, [penalty] * count, [], 0, around)
    return sorted((device for device in chosen if device is not None), key=lambda it: (penalty(it), it.index))


def _rounds(gpus: Sequence[Gpu], served: Mapping[PciAddress, int], count: int) -> list[list[Gpu]]:
    """Divide `count` devices into rounds: return for each round the GPUs that get one device in it. The first round has
    the GPUs with the fewest devices (`served`); more GPUs join in later rounds. The last round may have more GPUs than
    devices remain for it."""
    level = min(served.get(gpu.pci, 0) for gpu in gpus)
    rounds: list[list[Gpu]] = []
    while sum(map(len, rounds)) < count:
        rounds.append([gpu for gpu in gpus if served.get(gpu.pci, 0) <= level])
        level += 1
    return rounds


# The cost matrix. A row stands for something that gets a device: a GPU of the pod, one device of a request without GPUs
# (the row is then its penalty function), or an idle GPU. A column is a device, or a blank: its row gets no device.

_Row = Gpu | Callable[[RdmaDevice], int]


def _solve(
    free: Sequence[RdmaDevice], must: Sequence[_Row], may: Sequence[Gpu], blanks: int, around: Surroundings
) -> list[RdmaDevice | None]:
    """Return the device of each row of the cost matrix: first the rows in `must`, then those in `may`. A row is a GPU,
    or one device of a request without GPUs (then it is the penalty function). Each row in `must` gets a device; as many
    rows in `may` as `blanks` says get None."""
    own = len(must) + len(may)
    if own - blanks == len(free):
        around = replace(around, idle=())  # no device is left for idle GPUs
    rows = own + len(around.idle)
    neighbours = dict(zip((device.id for device in free), intactness(free, around.layout.places), strict=True))
    free = _enough(free, rows, must, around)
    scale = _Scale.of(rows, free, around, neighbours)
    if rows * len(free) > _MOST_CELLS:
        return [*_one_by_one(free, [*must, *may][: own - blanks], scale), *[None] * blanks]
    never, without = scale.never, scale.without
    # The columns are the devices, the blanks, and last one for idle GPUs without a device, which any number may take.
    costs = [[*scale.idle(gpu), *[never] * blanks, without] for gpu in around.idle]  # first: they seldom compete
    costs += scale.each_own(must, lambda line: [*line, *[never] * (blanks + 1)])
    costs += scale.each_own(  # the last column: no blank is left
        may, lambda line: [*(it + never for it in line), *[0] * blanks, 2 * never]
    )
    columns = cheapest(costs)[len(around.idle) :]
    return [free[column] if column < len(free) else None for column in columns]


def _enough(free: Sequence[RdmaDevice], rows: int, must: Sequence[_Row], around: Surroundings) -> Sequence[RdmaDevice]:
    """Return the devices without superfluous ones. Of devices that differ only in their index, `rows` devices are
    enough, because no more than `rows` are assigned. Hundreds of virtual functions often differ only in their index."""
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
    """Give each row (a GPU, or one device of a request without GPUs) the device with the least cost that is left. Used
    for requests for hundreds of devices, because an exact solution would delay all pods of the node."""
    left = set(range(len(free)))
    for row in rows:
        costs = scale.own(row)
        column = min(left, key=costs.__getitem__)
        left.remove(column)
        yield free[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The costs of the seven criteria (see the module) combined in one number. One step of a criterion costs more than
    all steps of the criteria after it."""

    free: Sequence[RdmaDevice]
    places: Sequence[int]
    """The number of each device's place, that is, of its position in the PCI tree (nri_rdma.decide.layout)."""
    around: Surroundings
    rows: int
    by_distance: Mapping[Distance, int]
    near: int
    """The cost of one step of distance between a device and a GPU of the pod (the second criterion)."""
    idle_near: int
    """The cost of one step of distance between a device and an idle GPU (the fourth criterion)."""
    own_costs: tuple[int, ...]
    """The cost of each device by the criteria that do not depend on a GPU: the first, third, fifth and seventh of the
    module."""
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
        """A cost that forbids an assignment: it is higher than the sum of all permitted assignments."""
        return self.near * ((self.by_distance[Distance.SYS] + 1) * (self.rows + 1)) ** 2

    @property
    def without(self) -> int:
        """The cost of leaving an idle GPU without a device, which is the cost of the farthest distance."""
        return self.idle_near * self.by_distance[Distance.SYS]

    def each_own(self, rows: Iterable[_Row], whole: Callable[[list[int]], list[int]]) -> Iterator[list[int]]:
        """Yield a row of the cost matrix for each GPU or device of the pod's request (`rows`). `whole` receives the
        costs by device and adds the other columns of the matrix. Equal rows share one list object."""
        known: dict[int, list[int]] = {}
        for row in rows:
            if id(row) not in known:
                known[id(row)] = whole(self.own(row))
            yield known[id(row)]

    def own(self, row: _Row) -> list[int]:
        """Return the cost of each device for a row: a GPU of the pod, or one device of a request without GPUs (then
        `row` is its penalty function)."""
        if not isinstance(row, Gpu):
            return [row(device) * self.near + cost for device, cost in zip(self.free, self.own_costs, strict=True)]
        rails, own_rail = self.around.rails, self.around.layout.rail_of_gpu.get(row.pci)
        return [
            far + (0 if rails.get(device.id) == own_rail else self.rail) + cost
            for far, device, cost in zip(self._far(row, self.near), self.free, self.own_costs, strict=True)
        ]

    def idle(self, gpu: Gpu) -> list[int]:
        """Return the cost of each device for an idle GPU. A device that cannot carry data costs as much as leaving the
        GPU without a device."""
        far = self._far(gpu, self.idle_near)
        if not self.around.down:
            return far
        return [
            self.without if device.id in self.around.down else cost for device, cost in zip(self.free, far, strict=True)
        ]

    def _far(self, gpu: Gpu, step: int) -> list[int]:
        """Return the cost of the distance between each device and a GPU. `step` is the cost of one step of distance."""
        costs = {far: cost * step for far, cost in self.by_distance.items()}
        far = self.around.layout.far[gpu.pci]
        return [costs[far[place]] for place in self.places]


def intactness(free: Sequence[RdmaDevice], places: Places) -> list[int]:
    """Return for each device a number that grows with its free neighbours. Neighbours below its switch count most, then
    those below its root complex, then those on its NUMA node."""
    of_each = [places.groups[places.of[device.id]] for device in free]
    others = {it: min(_MAX_NEIGHBOURS, size - 1) for it, size in Counter(chain.from_iterable(of_each)).items()}
    step = _MAX_NEIGHBOURS + 1
    return [(others[switch] * step + others[root]) * step + others[numa_node] for switch, root, numa_node in of_each]
