"""The messages that a pool sends to the kubelet: the ids it offers, the ids it prefers, and the content of an
allocation. Pure.

A pod requests units of the pool's extended resource. A unit is either a share, whose device is chosen when the pod's
sandbox starts (nri_rdma.decide.share_requests), or a device with its own id. Each allocation has an annotation from
which CreateContainer knows the container's ids, and normally the CDI device of the guard, an OCI hook that keeps a
container from starting without its devices.

A share's allocation has no device nodes. A device's allocation has them only if the runtime ignores CDI devices,
because then the guard is missing and the container would start without its device. The guard resource is an extended
resource whose allocation has nothing but the guard.
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
"""The content of the kubelet's list: for a pool of shares (units without a fixed device) the number of healthy shares,
otherwise the pool's devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supply:
    """The node's devices at one moment, and which of them the pools offer.

    `taken` returns the pods that hold each device. `held` returns the devices of a pool that the kubelet allocated to
    pods by device id. `is_guarded`: each allocation has a CDI device that adds the guard, an OCI hook that keeps a
    container from starting without its devices.
    """

    node: Node
    offer: Offer
    taken: Callable[[], Taken]
    held: Callable[[str], tuple[RdmaDevice, ...]]
    is_guarded: bool = False


def told_of(pool: Pool, supply: Supply) -> Told:
    """Return what the pool's ListAndWatch message says: the number of healthy ids, or the devices with their health."""
    if pool.is_guard:
        return pool.shares if supply.is_guarded else 0
    if pool.gives is ShareGives.DEVICE:
        return offered_devices(pool, supply.node, supply.offer, supply.taken(), supply.held(pool.name))
    return healthy_shares(pool, supply.offer)


def count_of(pool: Pool, told: Told) -> int:
    """Return how many ids of the pool's resource the kubelet gets, healthy or not. `told` is the content of the list
    that it gets."""
    return pool.shares if isinstance(told, int) else len(told)


def healthy_of(told: Told) -> int:
    """Return how many ids in the list for the kubelet are healthy. Only healthy ids can be allocated."""
    return told if isinstance(told, int) else sum(it.is_healthy for it in told)


def healthy_shares(pool: Pool, offer: Offer) -> int:
    """Return how many of the pool's shares are healthy. A share is a unit of the pool's extended resource. A device is
    usable if it has an active port and the host does not use it.

    If a share gives one device, each usable device makes a fixed number of shares healthy. If a share gives all
    devices, all shares are healthy while at least one device is usable.
    """
    up = sum(1 for device in offer.by_pool[pool.name] if is_up(device) and not device.in_use)
    if pool.gives is ShareGives.ALL:
        return pool.shares if up else 0
    return min(pool.shares, up * offer.shares_per_device.get(pool.name, 0))


def listed(pool: Pool, told: Told) -> bytes:
    """Return the ListAndWatch message with the content `told`.

    If that is a number N, the first N of the pool's share ids are healthy and the others are not. Otherwise it is the
    pool's devices; each is sent with its NUMA node for the kubelet's Topology Manager.
    """
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

    The kubelet may offer a device that a pod still has, if it has forgotten the allocation. Such a device is used only
    if too few other devices are free.
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

    `guard` is the CDI device that adds the guard, an OCI hook that keeps a container from starting without its devices;
    "": the answer has no guard. `nodes` returns the device nodes of an id; None: the answer has no device nodes.
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
    """Yield the device nodes of the allocated device, and the node of rdma_cm.

    `share` is the id that the kubelet allocated. If the pool's ids are not ids of devices, nothing is yielded, because
    the device is chosen later, when the pod's sandbox starts.
    """
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
