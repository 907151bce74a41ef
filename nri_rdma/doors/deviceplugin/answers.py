"""The messages that a pool sends to the kubelet: the ids it offers, the ids it prefers, and the content of an
allocation. Pure.

The allocation of a share contains no device node: its device is chosen when the pod's sandbox starts, near the GPUs
that the kubelet gave to the pod (nri_rdma.decide.share_requests). It contains an annotation that tells CreateContainer
which shares the container has. The allocation of a device id has the annotation, too. It contains device nodes only if
the runtime does not read CDI specs, because then no guard stops a container that would start without them. The guard
resource brings the guard and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias  # Any: generated messages

from nri_rdma.decide.device_ids import OfferedDevice, offered_devices, preferred
from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Offer
from nri_rdma.decide.share_requests import is_up, share_ids
from nri_rdma.model.device import CharDevice, Node, RdmaDevice
from nri_rdma.model.pool import Pool, ShareGives
from nri_rdma.model.request import DEFAULT_CHAR_KINDS
from nri_rdma.pb import deviceplugin_pb2 as pb
from nri_rdma.text.share_annotations import guarded_annotation, share_annotation

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"

Told: TypeAlias = int | tuple[OfferedDevice, ...]
"""The content of ListAndWatch: for a pool of shares the number of healthy shares, otherwise the pool's devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The node's devices at one moment, and which of them the pools offer.

    `taken` returns who holds which device. `held` returns the devices of a pool that pods hold by their ids.
    `is_guarded`: allocations contain the CDI device that adds the guard's OCI hook.
    """

    node: Node
    offer: Offer
    taken: Callable[[], Taken]
    held: Callable[[str], tuple[RdmaDevice, ...]]
    is_guarded: bool = False


def told_of(pool: Pool, supply: Supply) -> Told:
    """Return the content of the pool's ListAndWatch message."""
    if pool.is_guard:
        return pool.shares if supply.is_guarded else 0
    if pool.gives is ShareGives.DEVICE:
        return offered_devices(pool, supply.node, supply.offer, supply.taken(), supply.held(pool.name))
    return healthy_shares(pool, supply.offer)


def count_of(pool: Pool, told: Told) -> int:
    """Return how many ids of the pool's resource the kubelet gets, healthy or not."""
    return pool.shares if isinstance(told, int) else len(told)


def healthy_of(told: Told) -> int:
    """Return how many ids of the pool's resource are healthy, so that the kubelet can allocate them."""
    return told if isinstance(told, int) else sum(it.is_healthy for it in told)


def healthy_shares(pool: Pool, offer: Offer) -> int:
    """Return how many of the pool's shares are healthy. A device is usable if it has an active port and the host does
    not use it.

    If a share gives one device, each usable device makes a fixed number of shares healthy. If a share gives all
    devices, all shares are healthy while one device is usable.
    """
    up = sum(1 for device in offer.by_pool[pool.name] if is_up(device) and not device.in_use)
    if pool.gives is ShareGives.ALL:
        return pool.shares if up else 0
    return min(pool.shares, up * offer.shares_per_device.get(pool.name, 0))


def listed(pool: Pool, told: Told) -> bytes:
    """Return the ListAndWatch message. The first shares are the healthy ones; a device is sent with its NUMA node, for
    the kubelet's Topology Manager."""
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
    """Return the answer to GetPreferredAllocation: for each container the ids whose devices are nearest to each other.

    A device that a pod holds, although the kubelet has forgotten its allocation, is used only if too few others are
    free.
    """
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
    """Return the answer to Allocate; `containers` has the allocated ids of each container.

    `guard` is the CDI device that adds the guard's OCI hook; "": there is no guard. `nodes` returns the device nodes of
    an id; None: the answer contains no device nodes.
    """
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
    """Yield the device nodes of the device with the id `share`, and the node of rdma_cm; nothing for a share, because
    its device is not chosen yet."""
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
