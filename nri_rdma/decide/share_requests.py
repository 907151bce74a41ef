"""Turns the shares that the kubelet allocated to a pod's containers into requests. Pure.

A share is an id that the device plugin of a pool reports to the kubelet. The kubelet allocates it to a container, which
then gets a device, or all devices of the pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from nri_rdma.model.allocation import ContainerAllocation, DeviceIds, PodAllocation
from nri_rdma.model.device import DeviceId, LinkLayer, RdmaDevice
from nri_rdma.model.pool import Pool, ShareGives
from nri_rdma.model.request import DeviceRequest, Match, Mode, Scope

_ACTIVE = "ACTIVE"
_NO_LABEL = re.compile(r"[^a-z0-9]+")


def share_ids(pool: Pool) -> tuple[str, ...]:
    """Return the ids that the device plugin of a pool reports to the kubelet (its shares), unique on the node. All
    numbers in them have equally many digits, so that the ids sort by number."""
    width = len(str(pool.shares - 1))
    return tuple(f"{pool.name}-{number:0{width}}" for number in range(pool.shares))


def unknown_ids(pool: Pool, ids: Iterable[str]) -> tuple[str, ...]:
    """Return those of `ids` that the device plugin of the pool does not offer as shares. Empty for a pool whose ids
    each stand for one device: the id of a missing device is refused elsewhere."""
    known = frozenset(share_ids(pool))
    return tuple(it for it in ids if it not in known) if pool.gives is not ShareGives.DEVICE else ()


def known_shares(pools: Mapping[str, Pool], allocation: PodAllocation) -> PodAllocation:
    """Return the allocation without the ids that the device plugins of these pools do not offer."""
    by_resource = {pool.resource: pool for pool in pools.values()}

    def known(told: DeviceIds) -> DeviceIds:
        pool = by_resource.get(told.resource)
        unknown = unknown_ids(pool, told.ids) if pool is not None else ()
        return replace(told, ids=tuple(it for it in told.ids if it not in unknown))

    containers = (
        replace(container, resources=tuple(it for it in map(known, container.resources) if it.ids))
        for container in allocation.containers
    )
    return replace(allocation, containers=tuple(containers))


def share_requests(pools: Mapping[str, Pool], allocation: PodAllocation) -> tuple[DeviceRequest, ...]:
    """Return the requests for the ids of these pools that the kubelet allocated to a pod's containers. `Pool.gives`
    decides how many there are: one for each container, in which ids that several containers have are a request of
    their own; one for all containers if an id gives all devices of the pool; or one for each id if an id stands for one
    device."""
    return tuple(request for pool in pools.values() for request in _requests(pool, _containers(pool, allocation)))


def requests_for(
    pools: Mapping[str, Pool], container: str, shares: Iterable[tuple[str, str]], given: Mapping[str, str]
) -> tuple[DeviceRequest, ...]:
    """Return the requests for ids (shares) that the kubelet allocated to a container. Each id comes after its resource
    name in `shares`.

    `given` has the ids that the container's pod already has, with the names of their devices. The kubelet reuses ids of
    init containers for other containers, and a reused id must keep its device.
    """
    give_all = {pool.resource for pool in pools.values() if pool.gives is ShareGives.ALL}
    new: dict[str, list[str]] = {}
    again: dict[tuple[str, str], list[str]] = {}
    for resource, share in sorted(shares):
        if share in given:
            again.setdefault((resource, "" if resource in give_all else given[share]), []).append(share)
        else:
            new.setdefault(resource, []).append(share)
    requests = [*_of_container(pools, container, new)]
    for (resource, device), reused in again.items():
        (request,) = _of_container(pools, container, {resource: reused})
        requests.append(replace(request, match=Match(device=device), count=1) if device else request)
    return tuple(requests)


def _of_container(
    pools: Mapping[str, Pool], container: str, by_resource: Mapping[str, list[str]]
) -> tuple[DeviceRequest, ...]:
    resources = tuple(DeviceIds(resource=name, ids=tuple(ids)) for name, ids in by_resource.items())
    return share_requests(pools, PodAllocation(containers=(ContainerAllocation(name=container, resources=resources),)))


def device_request(pool: Pool, device_id: str, containers: frozenset[str]) -> DeviceRequest:
    """Return the request of these containers for the device with this id, in the first mode that the pool can serve."""
    request = _request(pool, containers, (device_id,), 1)
    return replace(request, match=Match(id=DeviceId(device_id)), mode=None)


def is_up(device: RdmaDevice) -> bool:
    """Return whether a device can carry data: one of its ports is active, or the state of its ports is unknown."""
    return device.port_state in {"", _ACTIVE}


def rises(device: RdmaDevice, mode: Mode) -> bool:
    """Return whether the pod brings a port of the device up. It does in mode exclusive, in which the netdev moves into
    the pod, if the port is an Ethernet port and a netdev is set down on the host."""
    if mode is not Mode.EXCLUSIVE or all(netdev.up for netdev in device.netdevs):
        return False
    return any(port.link_layer is LinkLayer.ETHERNET for port in device.ports)


def is_up_in(device: RdmaDevice, mode: Mode) -> bool:
    """Return whether a device can carry data in a pod that has it in this mode."""
    return is_up(device) or rises(device, mode)


def down_words(device: RdmaDevice, mode: Mode) -> str:
    """Return a text on the state of the device's ports if none is active, for a pod with this mode; "" for other
    devices."""
    if is_up(device):
        return ""
    words = f"its {'port is' if len(device.ports) == 1 else 'ports are'} {device.port_state}"
    return f"{words} until the pod raises its netdev" if rises(device, mode) else words


def share_name(resource: str) -> str:
    """Return a name for the request that comes from a resource (`rdma.example/pool`): the part after the slash, as a
    DNS label."""
    return _NO_LABEL.sub("-", resource.rpartition("/")[2].lower()).strip("-")[:63].strip("-")


def _containers(pool: Pool, allocation: PodAllocation) -> dict[str, tuple[str, ...]]:
    """Return, by container, the ids of the pool's resource that the kubelet allocated to it."""
    return {
        container.name: ids.ids
        for container in allocation.containers
        for ids in container.resources
        if ids.resource == pool.resource
    }


def _requests(pool: Pool, containers: Mapping[str, tuple[str, ...]]) -> Iterator[DeviceRequest]:
    if not containers:
        return
    if pool.gives is ShareGives.ALL:
        yield _request(pool, frozenset(containers), tuple(share for ids in containers.values() for share in ids), None)
        return
    if pool.gives is ShareGives.DEVICE:
        yield from (device_request(pool, it, names) for it, names in sorted(_names_by_id(containers).items()))
        return
    together: dict[frozenset[str], list[str]] = {}
    for it, names in _names_by_id(containers).items():
        together.setdefault(names, []).append(it)
    for names, ids in together.items():
        yield _request(pool, names, tuple(ids), len(ids))


def _names_by_id(containers: Mapping[str, tuple[str, ...]]) -> dict[str, frozenset[str]]:
    """Return, by id, the containers to which it is allocated: the kubelet allocates the ids of an init container again
    to other containers."""
    names: dict[str, set[str]] = {}
    for container, ids in containers.items():
        for it in ids:
            names.setdefault(it, set()).add(container)
    return {it: frozenset(them) for it, them in names.items()}


def _request(pool: Pool, containers: frozenset[str], ids: tuple[str, ...], count: int | None) -> DeviceRequest:
    return DeviceRequest(
        name=share_name(pool.resource),
        where=f"{pool.resource} of {', '.join(sorted(containers))}",
        pool=pool.name,
        count=count,
        scope=Scope(only=containers),
        mode=Mode.SHARED,
        shares=ids,
    )
