"""Computes the rdma cgroup limits of a pool's shares if nobody wrote limits. A share is an id that the kubelet
allocates to a container, which gets a device for it. Pure.

Law: a device's objects of each kind (queue pairs, memory regions and others) are divided into equal parts, one for each
of its shares and one for the host. The rdma cgroup has one limit for objects of all kinds, and a container may use all
of it for one kind. The limit is therefore computed from the kind of which the device has the fewest objects; so each
share gets its part, whatever other shares create.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import Offer
from nri_rdma.model.device import Node, RdmaDevice
from nri_rdma.model.pool import LEAST_OBJECTS, Pool
from nri_rdma.model.request import DeviceRequest, RdmaLimits

CONTEXTS = 1024
"""The contexts (hca_handle) that all users of a device may open together. The number is our own choice, because no
verbs call reports how many contexts a device can have."""
LEAST_CONTEXTS = 16
"""The fewest contexts that a share (an id that the kubelet allocates) allows. Each process of a container opens one or
two, and many jobs have one process per GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLimits:
    """The limits of one share (an id that the kubelet allocates) on one device. `why` says how the limits were computed
    that the configuration does not set, or why there are none; "" if the configuration sets all."""

    limits: RdmaLimits
    why: str

    @property
    def words(self) -> str:
        """The limits as a text, with the reason in brackets."""
        told = {"hca_handle": self.limits.hca_handles, "hca_object": self.limits.hca_objects}
        limits = " ".join(f"{name}={number}" for name, number in told.items() if number is not None)
        return f"{limits or 'no limits'} ({self.why or 'as the pool says'})"


def share_limits(node: Node, offer: Offer, pool: Pool, device: RdmaDevice) -> ShareLimits:
    """Return the limits of one share (an id that the kubelet allocates) of this pool on one of its devices. They are
    the limits for a pod to which no rule of the configuration gives other limits."""
    written = (pool.limits or RdmaLimits()).within(pool.max_limits)
    if written.hca_handles is not None and written.hca_objects is not None:
        return ShareLimits(limits=written, why="")
    default = _default(node, offer, pool, device)
    return ShareLimits(limits=_completed(written, default.limits, 1), why=default.why)


def _default(node: Node, offer: Offer, pool: Pool, device: RdmaDevice) -> ShareLimits:
    """Return the limits of one share (an id that the kubelet allocates), computed from the number of objects that the
    device can have. If that number is unknown or too small, there are no limits, and `why` has the reason."""
    if not node.rdma_cgroup:
        return _none("this node's cgroups have no rdma controller")
    capacity = node.capacities.get(device.id)
    if capacity is None:
        return _none(node.capacity_problems.get(device.id, "its capacity was not asked yet"))
    shares = offer.shares_per_device.get(pool.name, pool.shares)
    kind, most = capacity.scarcest
    objects = most // (shares + 1)
    among = f"{most} {kind} among {shares} share{'' if shares == 1 else 's'} and the host"
    if objects < LEAST_OBJECTS:
        return _none(f"{among} are {objects} for each, fewer than {LEAST_OBJECTS}; write limits for the pool")
    limits = RdmaLimits(hca_handles=max(LEAST_CONTEXTS, CONTEXTS // (shares + 1)), hca_objects=objects)
    return ShareLimits(limits=limits, why=among)


def with_share_limits(
    node: Node, offer: Offer, pools: Iterable[Pool], placed: tuple[Placed, ...]
) -> tuple[Placed, ...]:
    """Return the placed requests with default limits on the devices of shares (ids that the kubelet allocates). Limits
    that the pool or a rule sets stay."""
    by_name = {pool.name: pool for pool in pools if pool.shares}
    return tuple(
        replace(item, limits=tuple(_limits(node, offer, by_name[item.admitted.request.pool], item)))
        if item.admitted.request.shares and item.admitted.request.pool in by_name
        else item
        for item in placed
    )


def _limits(node: Node, offer: Offer, pool: Pool, placed: Placed) -> Iterator[RdmaLimits | None]:
    request = placed.admitted.request
    for index, device in enumerate(placed.devices):
        default = _default(node, offer, pool, device).limits
        shares = _shares_on(request, index, len(placed.devices))
        limits = _completed(request.limits or RdmaLimits(), default, shares)
        yield limits if limits != RdmaLimits() else None


def _shares_on(request: DeviceRequest, index: int, devices: int) -> int:
    """Return how many of a container's shares (ids that the kubelet allocates) are on the device number `index` of
    `devices` devices. A request without a count gives every device of the pool; all its shares then count, or only one
    if the request is for several containers."""
    if request.count is not None:
        return max(1, len(request.shares_of(index, devices)))
    return len(request.shares) if request.scope.only is not None and len(request.scope.only) == 1 else 1


def _completed(written: RdmaLimits, default: RdmaLimits, shares: int) -> RdmaLimits:
    """Return the written limits. A limit that is not written is the default limit multiplied by the number of
    shares."""
    return RdmaLimits(
        hca_handles=_first(written.hca_handles, default.hca_handles, shares),
        hca_objects=_first(written.hca_objects, default.hca_objects, shares),
    )


def _first(written: int | None, default: int | None, shares: int) -> int | None:
    if written is not None or default is None:
        return written
    return default * shares


def _none(why: str) -> ShareLimits:
    return ShareLimits(limits=RdmaLimits(), why=why)
