"""Device-plugin shares: what the kubelet allocated of nri-rdma's resources, until it is known which pod has it.

The kubelet's call Allocate names neither a pod nor a container. Law: after an Allocate its shares are pending, and
while shares are pending the kubelet is asked about each new pod. While nothing is pending a pod costs one comparison.
Shares are pending only for a limited time, because their pod may be deleted before its sandbox starts. If the pod comes
later, the annotations of its containers tell their shares (nri_rdma.text.share_annotations).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.holdings import held_by_id
from nri_rdma.decide.placement import Taken
from nri_rdma.engine.container import Container
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import RdmaDevice
from nri_rdma.model.pool import GUARD_POOL, Pool, PoolDoor, ShareGives, guard_pool
from nri_rdma.model.registration import Registration
from nri_rdma.observe.spans import traceparent

PENDING_S = 120.0
"""How long shares wait for their pod to be known after their allocation, in seconds. Usually the pod's sandbox starts
within half a second; volumes may take longer."""
NOT_TRIED = "the runtime has not reported its pods yet"
"""Why a resource is not registered right after the daemon's start."""


class Guarding(StrEnum):
    """The state of the guard, an OCI hook that keeps a container from starting without its devices: ON, or the reason
    why containers with shares get no hook."""

    ON = "on"
    NO_HOOK = "the hook is not at guard_hook on the host"
    NO_CDI = "the runtime does not read CDI specs (containerd: enable_cdi = false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesView:
    """The state of the pools that pods request by a resource, for `status`."""

    guarding: Guarding
    registrations: Mapping[str, Registration]
    """The state of each resource at the kubelet, by the name of its pool or GUARD_POOL."""
    taken: Taken
    attachments: tuple[Attachment, ...]

    @property
    def are_guarded(self) -> bool:
        """Whether containers with shares (units of a device-plugin resource) get the guard, an OCI hook that keeps a
        container from starting without its devices."""
        return self.guarding is Guarding.ON

    @property
    def of_guard(self) -> Registration | None:
        """The registration at the kubelet of the guard resource, which a container requests to get the guard (an OCI
        hook). None if the guard resource is not configured."""
        return self.registrations.get(GUARD_POOL)

    def counted(self, pool: Pool, devices: Iterable[RdmaDevice]) -> tuple[int, int]:
        """Return the number of units (shares or devices) that a pool offers of its resource, and the number that pods
        have. `devices`: the pool's devices that are on the host now."""
        if pool.gives is not ShareGives.DEVICE:
            holdings = (holding for it in devices for holding in self.taken.get(it.id, ()))
            return pool.shares, len({share for holding in holdings for share in holding.shares})
        held = {it.id for it in held_by_id(self.attachments, pool.name)}
        return len(held.union(it.id for it in devices)), len(held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A share that was allocated to a pod that is not known yet."""

    until: float
    """The time at which it stops being pending, in seconds of `ShareBook`'s clock (`time.monotonic`)."""
    trace: str
    """The `traceparent` of the Allocate call."""


class ShareBook:
    """The pools whose units (shares) pods request by a device-plugin resource, the registration of these resources at
    the kubelet, and the pending shares. A share is pending while its pod is not known. Thread-safe."""

    def __init__(
        self, pools: Iterable[Pool] = (), clock: Callable[[], float] = time.monotonic, guard_resource: str = ""
    ) -> None:
        self.pools = {pool.name: pool for pool in pools if pool.door is PoolDoor.RESOURCE}
        """The pools that pods request by a resource, by name."""
        self.guard_resource = guard_resource
        """The resource that a container requests to get the guard (an OCI hook); "" if there is none."""
        self.served = (*self.pools.values(), *([guard_pool(guard_resource)] if guard_resource else []))
        """The pools whose resources the device plugin registers at the kubelet: `pools`, and one for the guard
        resource, which a container requests to get the guard (an OCI hook)."""
        self.pools_by_id = frozenset(it.name for it in self.pools.values() if it.gives is ShareGives.DEVICE)
        """The names of the pools in which each device id of the resource stands for one whole RDMA device."""
        self.guarding = Guarding.NO_HOOK
        """Whether containers with shares get the guard, an OCI hook that keeps a container from starting without its
        devices; if not, the reason."""
        started = Registration(error=NOT_TRIED, since=time.time())
        self.registrations = dict.fromkeys((it.name for it in self.served), started)
        """The state of each resource at the kubelet, by the name of its pool."""
        self._lock = threading.Lock()
        self._clock = clock
        self._pending: dict[tuple[str, str], _Pending] = {}
        """The pending shares by resource and id, in the order of their first allocation. A share that is allocated
        again keeps its place and gets the later time."""

    @property
    def is_guarded(self) -> bool:
        """Whether containers with shares (units of a device-plugin resource) get the guard, an OCI hook that keeps a
        container from starting without its devices."""
        return self.guarding is Guarding.ON

    @property
    def is_pending(self) -> bool:
        """Whether the kubelet allocated shares (units of a device-plugin resource) within the last PENDING_S seconds,
        and it is not known yet to which pod."""
        if not self._pending:
            return False
        with self._lock:
            now = self._clock()
            while self._pending and next(iter(self._pending.values())).until <= now:
                self._pending.pop(next(iter(self._pending)))
        return bool(self._pending)

    def unguarded(self, container: Container) -> str:
        """Return a resource from which the container has shares without the guard that the device plugin gave with
        them; "" if there is none. The guard is an OCI hook that keeps a container from starting without its devices.
        Shares that were allocated before the guard was configured need none."""
        lacking = {
            self.pools[name].resource for name in container.given_guards - container.guards if name in self.pools
        }
        return min((it for it, _ in container.shares if it in lacking), default="") if self.is_guarded else ""

    def registered(self, pool: str, error: str = "") -> None:
        """Note that the kubelet accepted the resource of a pool, or the error with which its registration failed."""
        self.registrations[pool] = self.registrations[pool].then(error, time.time())

    def view(self, taken: Taken, attachments: tuple[Attachment, ...]) -> SharesView:
        """Return the present state of the pools for `status`. `taken`: the reservations of devices; `attachments`: all
        attachments of the node."""
        return SharesView(
            guarding=self.guarding, registrations=dict(self.registrations), taken=taken, attachments=attachments
        )

    def allocated(self, resource: str, shares: Iterable[str]) -> None:
        """Make shares (device ids of a resource) pending: the kubelet allocated them in a call that does not name the
        pod. They stay pending until their pod is known, at most PENDING_S seconds."""
        with self._lock:
            pending = _Pending(until=self._clock() + PENDING_S, trace=traceparent())
            for share in shares:
                self._pending[resource, share] = pending

    def traces(self, allocation: PodAllocation) -> frozenset[str]:
        """Return the `traceparent` of each Allocate call that allocated a share in a pod's allocation. Shares that are
        not pending any more are left out."""
        with self._lock:
            found = (self._pending.get(pair) for pair in _pairs(allocation))
            return frozenset(it.trace for it in found if it is not None and it.trace)

    def matched(self, allocation: PodAllocation) -> None:
        """Note that the pod of this allocation is known: the shares in it (units of a device-plugin resource) do not
        wait for their pod any more."""
        self.told(_pairs(allocation))

    def told(self, shares: Iterable[tuple[str, str]]) -> None:
        """Note that the container of each of these shares is known: they do not wait for their pod any more. A share is
        a pair of a resource and a device id."""
        with self._lock:
            for pair in shares:
                self._pending.pop(pair, None)


def _pairs(allocation: PodAllocation) -> Iterator[tuple[str, str]]:
    """Yield the shares in a pod's allocation, each as a pair of a resource and a device id."""
    return ((ids.resource, share) for it in allocation.containers for ids in it.resources for share in ids.ids)
