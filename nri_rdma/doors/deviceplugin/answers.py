"""What a pool answers to the kubelet: what it can allocate, what goes well together, and what an allocation brings to a
container. Pure.

An allocated share brings no device node: which device it stands for is decided when the pod's sandbox starts, next to
the GPUs that the kubelet gave to the pod (nri_rdma.decide.shares). It brings an annotation, by which CreateContainer
knows what the container has to get. So does the id of a device; its nodes come with it only where the runtime does not
read CDI specs, because no guard keeps such a container from starting without them. The guard resource brings the guard
and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: generated messages

from nri_rdma.decide.device_ids import OfferedDevice, offered_devices, preferred
from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Offer
from nri_rdma.decide.shares import is_up, share_ids
from nri_rdma.model.device import CharDevice, Node, RdmaDevice
from nri_rdma.model.pool import Pool, ShareGives
from nri_rdma.model.request import DEFAULT_CHAR_KINDS
from nri_rdma.pb import deviceplugin_pb2 as pb
from nri_rdma.text.shares import guarded_annotation, share_annotation

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

Told: TypeAlias = int | tuple[OfferedDevice, ...]
"""What the kubelet is told that a pool has: how many of its shares are healthy, or its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The node's devices for the pools at one moment. `held` returns the devices that pods have of a pool by their
    ids; `is_guarded` says whether the guard comes with an allocation."""

    node: Node
    offer: Offer
    taken: Callable[[], Taken]
    held: Callable[[str], tuple[RdmaDevice, ...]]
    is_guarded: bool = False


def told_of(pool: Pool, supply: Supply) -> Told:
    """Return what the kubelet is told that the pool has."""
    if pool.is_guard:
        return pool.shares if supply.is_guarded else 0
    if pool.gives is ShareGives.DEVICE:
        return offered_devices(pool, supply.node, supply.offer, supply.taken(), supply.held(pool.name))
    return healthy_shares(pool, supply.offer)


def count_of(pool: Pool, told: Told) -> int:
    """Return how many of the resource the kubelet is told of."""
    return pool.shares if isinstance(told, int) else len(told)


def healthy_of(told: Told) -> int:
    """Return how many of them can be given."""
    return told if isinstance(told, int) else sum(it.is_healthy for it in told)


def healthy_shares(pool: Pool, offer: Offer) -> int:
    """Return how many shares of a pool have a device with an active port that the host does not use. Where each share
    gives one device, another device takes its part of them away; where each gives all devices, one is enough."""
    up = sum(1 for device in offer.by_pool[pool.name] if is_up(device) and not device.in_use)
    if pool.gives is ShareGives.ALL:
        return pool.shares if up else 0
    return min(pool.shares, up * offer.shares_per_device.get(pool.name, 0))


def listed(pool: Pool, told: Told) -> bytes:
    """Return the message of ListAndWatch: of shares the first ones are healthy; of devices each has its NUMA node, by
    which the kubelet's Topology Manager aligns it."""
    if isinstance(told, int):
        devices = [
            pb.Device(ID=share, health=HEALTHY if number < told else UNHEALTHY)
            for number, share in enumerate(share_ids(pool))
        ]
    else:
        devices = list(map(_device, told))
    message: bytes = pb.ListAndWatchResponse(devices=devices).SerializeToString()
    return message


def preferences(pool: Pool, request: Any, supply: Supply) -> bytes:
    """Return the answer to GetPreferredAllocation: the ids whose devices are nearest to each other. A device that a pod
    has, which the kubelet does not know any more, is preferred only where the others are too few."""
    devices: dict[str, RdmaDevice] = {device.id: device for device in supply.held(pool.name)}
    devices |= {device.id: device for device in supply.offer.by_pool[pool.name]}
    held = {str(it) for it, holders in supply.taken().items() if holders}
    answers = []
    for it in request.container_requests:
        must, count = list(it.must_include_deviceIDs), it.allocation_size
        free = [one for one in it.available_deviceIDs if one in must or one not in held]
        available = free if len({*free, *must}) >= count else list(it.available_deviceIDs)
        chosen = preferred(devices, available, must, count)
        answers.append(pb.ContainerPreferredAllocationResponse(deviceIDs=chosen))
    message: bytes = pb.PreferredAllocationResponse(container_responses=answers).SerializeToString()
    return message


def allocated(
    pool: Pool,
    containers: Iterable[Iterable[str]],
    guard: str = "",
    nodes: Callable[[str], Iterable[CharDevice]] | None = None,
) -> bytes:
    """Return the answer to Allocate for the shares of each container; `guard` is the CDI device that brings the guard,
    or "" for none; `nodes` returns the device nodes that come with a share, None: none do."""
    cdi_devices = [pb.CDIDevice(name=guard)] if guard else []
    guarded = [guarded_annotation(pool.resource, pool.name)] if guard else []
    answers = []
    for shares in map(tuple, containers):
        chars = {char.path: char for share in shares for char in (nodes(share) if nodes is not None else ())}
        answers.append(
            pb.ContainerAllocateResponse(
                annotations={} if pool.is_guard else dict([share_annotation(pool.resource, shares), *guarded]),
                cdi_devices=cdi_devices,
                devices=[pb.DeviceSpec(container_path=it, host_path=it, permissions="rw") for it in chars],
            )
        )
    message: bytes = pb.AllocateResponse(container_responses=answers).SerializeToString()
    return message


def nodes_of(pool: Pool, supply: Supply, share: str) -> Iterator[CharDevice]:
    """Yield the device nodes of the device with that id; none for a share, whose device is not known yet."""
    for device in supply.offer.by_pool[pool.name] if pool.gives is ShareGives.DEVICE else ():
        if device.id == share:
            yield from (char for char in device.char_devices if char.kind in DEFAULT_CHAR_KINDS)
            if supply.node.rdma_cm is not None:
                yield supply.node.rdma_cm


def _device(it: OfferedDevice) -> pb.Device:
    device = pb.Device(ID=it.id, health=HEALTHY if it.is_healthy else UNHEALTHY)
    if it.numa_node is not None:
        device.topology.nodes.add(ID=it.numa_node)
    return device
