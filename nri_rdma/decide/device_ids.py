"""Pools whose ids stand for devices, one each: what the kubelet is told of them, and which of them go well together.
Pure.

The kubelet asks with ids only, before it is known which pod they are for. So it is told all that an id means: the NUMA
node, by which its Topology Manager aligns devices with processors and GPUs, and whether the device can be given now.
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
from nri_rdma.decide.shares import device_request, is_up, is_up_in
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import DeviceId, Node, RdmaDevice
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode, PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedDevice:
    """A device of a pool as the kubelet is told of it."""

    id: DeviceId
    is_healthy: bool
    numa_node: int | None


def offered_devices(
    pool: Pool, node: Node, offer: Offer, taken: Taken, held: Iterable[RdmaDevice] = ()
) -> tuple[OfferedDevice, ...]:
    """Return the devices of the pool, by index. `held` are devices that pods have by their ids: the kernel may hide
    these from the host, and the scheduler goes on counting them."""
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
    """Return whether a pod gets the device if the kubelet allocates it, or has it that way already. Of a device that a
    pod has alone the port does not count: the pod may set it down, and others would get fewer devices for that."""
    if holders and all(device.id in holding.shares for holding in holders):
        return admitted.mode is Mode.EXCLUSIVE or is_up(device)
    if admitted.mode is Mode.EXCLUSIVE and device.lacks_netdev:
        return False  # some pod has it; a request that names the device may be that pod's, and is not refused for this
    return is_up_in(device, admitted.mode) and not why_not_free(device, admitted, node, holders)


def _admitted(pool: Pool, node: Node) -> Admitted | None:
    """Return a request for a device of the pool as it is admitted, whatever the rules say of pods; None where this node
    admits none."""
    request = device_request(pool, "", frozenset())
    try:
        (admitted,) = admit(Policy(pools={pool.name: pool}), node, PodRequest(requests=(request,)), Asker())
    except NriRdmaError:
        return None
    return admitted


def preferred(
    devices: Mapping[str, RdmaDevice], available: Collection[str], must: Collection[str], count: int
) -> tuple[str, ...]:
    """Return `count` of the available ids, all of `must` among them, whose devices are nearest to each other: the
    fewest pairs on different NUMA nodes, then the fewest over a root complex, over a root port, over a switch. Of
    equally near ones return those whose neighbours are taken anyway. An id whose device is unknown comes last."""
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
"""NUMA node, root complex, root port, switch."""
_Chosen: TypeAlias = "RdmaDevice | tuple[_Chosen, ...]"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class _Choice:
    """A choice of some devices: what its distances cost, how intact the groups are that they are taken from, and the
    sum of their indexes."""

    cost: int = 0
    spoilt: int = 0
    indexes: int = 0
    chosen: _Chosen = field(default=(), compare=False)


_NONE = _Choice()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    """Devices of which at most `most` are chosen, and all of `must`. `weight` is above the number of pairs."""

    must: frozenset[str]
    spoils: Mapping[DeviceId, int]
    most: int
    weight: int

    def choose(self, devices: Sequence[RdmaDevice], level: int = 0) -> list[_Choice | None]:
        """Return the best choice of none, one, two and so on of devices that are in one group on all levels above; None
        where there is none."""
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
        """Return the best choices of two groups together; `apart` is the cost of a pair with one device in each."""
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
