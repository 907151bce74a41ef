"""What the kubelet allocated of our resources, and no pod is known to have yet.

Law: Allocate names neither pod nor container, so it only makes the next pods worth a question to the kubelet. A plain
pod costs a comparison while nothing is pending. Nothing is pending for long: a pod may be deleted before its sandbox
starts, and a container whose pod comes later says itself what it has (nri_rdma.text.share_annotations).
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
"""How long after an allocation pods are asked about, while none of them is known to have it. Usually the sandbox starts
within half a second; volumes may take longer."""
NOT_TRIED = "the runtime has not reported its pods yet"
"""Why a resource is not registered right after the daemon's start."""


class Guarding(StrEnum):
    """The guard of containers with shares, or the reason why they have none."""

    ON = "on"
    NO_HOOK = "the hook is not at guard_hook on the host"
    NO_CDI = "the runtime does not read CDI specs (containerd: enable_cdi = false)"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharesView:
    """The pools that are asked by a resource, as `status` shows them."""

    guarding: Guarding
    registrations: Mapping[str, Registration]
    """By the names of what is served."""
    taken: Taken
    attachments: tuple[Attachment, ...]

    @property
    def are_guarded(self) -> bool:
        """Return whether the kubelet gives the guard to containers with shares."""
        return self.guarding is Guarding.ON

    @property
    def of_guard(self) -> Registration | None:
        """Return whether the kubelet knows the guard resource; None where there is none."""
        return self.registrations.get(GUARD_POOL)

    def counted(self, pool: Pool, devices: Iterable[RdmaDevice]) -> tuple[int, int]:
        """Return how many a pool has of its resource, and how many of them pods have; `devices` are those that the
        host shows of it."""
        if pool.gives is not ShareGives.DEVICE:
            holdings = (holding for it in devices for holding in self.taken.get(it.id, ()))
            return pool.shares, len({share for holding in holdings for share in holding.shares})
        held = {it.id for it in held_by_id(self.attachments, pool.name)}
        return len(held.union(it.id for it in devices)), len(held)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A share that was allocated: when it is no longer asked about, in seconds of the clock, and the `traceparent` of
    the call."""

    until: float
    trace: str


class ShareBook:
    """Safe for use by several threads."""

    def __init__(
        self, pools: Iterable[Pool] = (), clock: Callable[[], float] = time.monotonic, guard_resource: str = ""
    ) -> None:
        self.pools = {pool.name: pool for pool in pools if pool.door is PoolDoor.RESOURCE}
        """The pools that are asked by a resource, by name."""
        self.served = (*self.pools.values(), *([guard_pool(guard_resource)] if guard_resource else []))
        """What the kubelet is told of: these pools, and the guard resource."""
        self.pools_by_id = frozenset(it.name for it in self.pools.values() if it.gives is ShareGives.DEVICE)
        """Those of them whose ids stand for devices."""
        self.guarding = Guarding.NO_HOOK
        """Whether the kubelet gives the guard to containers with shares."""
        started = Registration(error=NOT_TRIED, since=time.time())
        self.registrations = dict.fromkeys((it.name for it in self.served), started)
        """Whether the kubelet knows the resources, by the names of what is served."""
        self._lock = threading.Lock()
        self._clock = clock
        self._pending: dict[tuple[str, str], _Pending] = {}
        """One that was allocated again has its place and the later time."""

    @property
    def is_guarded(self) -> bool:
        """Return whether the kubelet gives the guard to containers with shares."""
        return self.guarding is Guarding.ON

    @property
    def is_pending(self) -> bool:
        """Return whether a pod may come that has shares of which nobody has told yet."""
        if not self._pending:
            return False
        with self._lock:
            now = self._clock()
            while self._pending and next(iter(self._pending.values())).until <= now:
                self._pending.pop(next(iter(self._pending)))
        return bool(self._pending)

    def unguarded(self, container: Container) -> str:
        """Return a resource that the container has shares of without the guard that was given with them, or "". A
        container whose shares are older than the guard was given none: it is served."""
        lacking = {
            self.pools[name].resource for name in container.given_guards - container.guards if name in self.pools
        }
        return min((it for it, _ in container.shares if it in lacking), default="") if self.is_guarded else ""

    def registered(self, pool: str, error: str = "") -> None:
        """Note that the kubelet knows the resource of a pool, or why not."""
        self.registrations[pool] = self.registrations[pool].then(error, time.time())

    def view(self, taken: Taken, attachments: tuple[Attachment, ...]) -> SharesView:
        """Return what is known now, beside who holds which device."""
        return SharesView(
            guarding=self.guarding, registrations=dict(self.registrations), taken=taken, attachments=attachments
        )

    def allocated(self, resource: str, shares: Iterable[str]) -> None:
        """Note that the kubelet allocated these shares to a container that it does not name."""
        with self._lock:
            pending = _Pending(until=self._clock() + PENDING_S, trace=traceparent())
            for share in shares:
                self._pending[resource, share] = pending

    def traces(self, allocation: PodAllocation) -> frozenset[str]:
        """Return the `traceparent` of each call that allocated one of these shares, while they are pending."""
        with self._lock:
            found = (self._pending.get(pair) for pair in _pairs(allocation))
            return frozenset(it.trace for it in found if it is not None and it.trace)

    def matched(self, allocation: PodAllocation) -> None:
        """Note whose these allocations are."""
        self.told(_pairs(allocation))

    def told(self, shares: Iterable[tuple[str, str]]) -> None:
        """Note that the containers of these shares are known, each with its resource."""
        with self._lock:
            for pair in shares:
                self._pending.pop(pair, None)


def _pairs(allocation: PodAllocation) -> Iterator[tuple[str, str]]:
    """Yield the ids that a pod was allocated, each with its resource."""
    return ((ids.resource, share) for it in allocation.containers for ids in it.resources for share in ids.ids)
