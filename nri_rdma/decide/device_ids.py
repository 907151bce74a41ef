"""Pools whose device-plugin ids each stand for one device: the list reported to the kubelet, and the preferred choice
of ids. Pure.

The kubelet allocates ids before it says for which pod. For each id the report therefore has the NUMA node, by which the
Topology Manager aligns devices with CPUs and GPUs, and whether the device can be given now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from nri_rdma.decide.layout import Places, branch
from nri_rdma.decide.placement import Holding, Taken, why_not_free
from nri_rdma.decide.policy import Admitted, Asker, Offer, Policy, admit
from nri_rdma.decide.ranking import intactness
from nri_rdma.decide.share_requests import device_request, is_up, is_up_in
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, Node, RdmaDevice
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode, PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device of a pool as it is reported to the kubelet."""

    id: DeviceId
    is_healthy: bool
    numa_node: int | None


def offered_devices(
    pool: Pool, node: Node, offer: Offer, taken: Taken, held: Iterable[RdmaDevice] = ()
) -> tuple[OfferedDevice, ...]:
    """Return the devices of the pool for the report to the kubelet, by index. `held` are devices whose ids the kubelet
    has allocated to pods. The kernel may hide such a device from the host; it is reported nevertheless, because the
    scheduler still counts it."""
    shown = offer.by_pool[pool.name]
    admitted = _admitted(pool, node)
    hidden = {device.id: device for device in held if node.device(device.id) is None}
    return (
        *(
            OfferedDevice(
                id=device.id,
                is_healthy=admitted is not None
                and _is_healthy(device, admitted, node, taken.get(device.id, frozenset())),
                numa_node=device.numa_node,
            )
            for device in shown
        ),
        *(
            OfferedDevice(id=device.id, is_healthy=True, numa_node=device.numa_node)
            for device in sorted(hidden.values(), key=lambda it: it.index)
        ),
    )


def _is_healthy(device: RdmaDevice, admitted: Admitted, node: Node, holders: frozenset[Holding]) -> bool:
    """Return whether the device is reported to the kubelet as healthy. It is healthy if a pod would get it now, or if
    the kubelet gave its id to the pods that have it. The port state of an exclusively held device does not count: its
    pod may take the link down, which must not lower the node's capacity."""
    if holders and all(device.id in holding.shares for holding in holders):
        return admitted.mode is Mode.EXCLUSIVE or is_up(device)
    if admitted.mode is Mode.EXCLUSIVE and device.lacks_netdev:
        return False  # its netdev is in some pod; only a request that names the device is not refused for this
    return is_up_in(device, admitted.mode) and not why_not_free(device, admitted, node, holders)


def _admitted(pool: Pool, node: Node) -> Admitted | None:
    """Return a request for one device of the pool, with the mode in which the pool would serve it. Rules about pods are
    ignored. None if the node's kernel and settings do not allow such a request."""
    request = device_request(pool, "", frozenset())
    try:
        (admitted,) = admit(Policy(pools={pool.name: pool}), node, PodRequest(requests=(request,)), Asker())
    except NriRdmaError:
        return None
    return admitted


def preferred(
    devices: Mapping[str, RdmaDevice], available: Collection[str], must: Collection[str], count: int
) -> tuple[str, ...]:
    """Return `count` of the available ids, including all of `must`, whose devices are nearest to each other.

    The choice with the fewest pairs on different NUMA nodes is best, then that with the fewest pairs across root
    complexes, across root ports, and across switches. Among equally near choices, devices whose neighbours (below their
    switch or root complex) are taken already are chosen first. Ids of unknown devices come last.
    """
    if count >= len({*must, *available}):
        return tuple(dict.fromkeys((*must, *sorted(available))))
    offered = [devices[it] for it in dict.fromkeys((*must, *available)) if it in devices]
    free = sorted((it for it in offered if it.id not in must), key=lambda it: it.index)
    candidates = _Candidates(
        must=frozenset(must),
        spoils=dict(zip((device.id for device in free), intactness(free, Places.of_devices(free)), strict=True)),
        most=count - sum(it not in devices for it in must),
        weight=count**2 + 1,
    )
    best = next((it for it in reversed(candidates.choose(offered)) if it is not None), _NONE)
    known = (str(device.id) for device in sorted(_flat(best.chosen), key=lambda it: it.index))
    return tuple(dict.fromkeys((*must, *known, *sorted(available))))[:count]


_LEVELS = 4
"""The number of levels of the topology: NUMA node, root complex, root port, switch."""
_Chosen: TypeAlias = "RdmaDevice | tuple[_Chosen, ...]"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Choice:
    """A choice of some devices. Choices are compared by `cost` (the distances between the devices), then by `spoilt`
    (how many free neighbours the devices have), then by `indexes` (the sum of their indexes). The least is best."""

    cost: int = 0
    spoilt: int = 0
    indexes: int = 0
    chosen: _Chosen = field(default=(), compare=False)


_NONE = _Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """A search for devices near each other: all of `must`, and at most `most` altogether. `spoils` is, by device, a
    number that grows with its free neighbours. `weight` is larger than the number of pairs, so that one pair at a
    farther level of the topology outweighs all pairs at nearer levels."""

    must: frozenset[str]
    spoils: Mapping[DeviceId, int]
    most: int
    weight: int

    def choose(self, devices: Sequence[RdmaDevice], level: int = 0) -> list[_Choice | None]:
        """Return a list whose entry N is the best choice of N devices, or None if N devices cannot include all of
        `must`. `level` is the level of the topology (0: NUMA node, 1: root complex, 2: root port, 3: switch) by which
        the devices are divided first."""
        if level == _LEVELS:
            return self._below_one_switch(devices)
        groups: dict[object, list[RdmaDevice]] = {}
        for device in devices:
            groups.setdefault(branch(device)[level], []).append(device)
        apart = self.weight ** (_LEVELS - level)
        best: list[_Choice | None] = [_NONE]
        for group in groups.values():
            best = self._both(best, self.choose(group, level + 1), apart)
        return best

    def _both(self, one: list[_Choice | None], other: list[_Choice | None], apart: int) -> list[_Choice | None]:
        """Return the best choices of devices from two groups together. `one` and `other` have the best choices of each
        group by number of devices. `apart` is the cost of each pair of devices that are in different groups."""
        most = min(self.most, len(one) + len(other) - 2)
        best: list[_Choice | None] = [None] * (most + 1)
        for (count, left), (more, right) in product(enumerate(one), enumerate(other)):
            if left is None or right is None or count + more > most:
                continue
            choice = _Choice(
                cost=left.cost + right.cost + count * more * apart,
                spoilt=left.spoilt + right.spoilt,
                indexes=left.indexes + right.indexes,
                chosen=(left.chosen, right.chosen),
            )
            before = best[count + more]
            best[count + more] = choice if before is None else min(before, choice)
        return best

    def _below_one_switch(self, devices: Sequence[RdmaDevice]) -> list[_Choice | None]:
        ordered = sorted(devices, key=lambda it: (it.id not in self.must, self.spoils.get(it.id, 0), it.index))
        least = sum(it.id in self.must for it in ordered)
        return [
            _Choice(
                spoilt=sum(self.spoils.get(it.id, 0) for it in ordered[:count]),
                indexes=sum(it.index for it in ordered[:count]),
                chosen=tuple(ordered[:count]),
            )
            if count >= least
            else None
            for count in range(min(self.most, len(ordered)) + 1)
        ]


def _flat(chosen: _Chosen) -> Iterator[RdmaDevice]:
    left: list[_Chosen] = [chosen]
    while left:
        match left.pop():
            case tuple() as several:
                left += several
            case device:
                yield device
