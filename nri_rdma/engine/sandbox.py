"""The memory of the engine about each sandbox, besides its attachments: one object, which ends with the sandbox.

A pod that asks for no device and has none from other programs has no object. Of a sandbox that was stopped only the id
is remembered: the runtime may still create containers in it, and nothing is attached for them any more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from nri_rdma.attach.containers import KEPT_CONTAINERS
from nri_rdma.cdi.index import NodesAt
from nri_rdma.decide.alignment import Alignment
from nri_rdma.errors import UserspaceError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.pod import Pod

KEPT_SANDBOXES = 4096
"""The maximum number of remembered sandboxes, which is more than any node runs. Beyond it the oldest idle sandbox
without attachments is forgotten."""
KEPT_ENDED = 1024
"""The maximum number of remembered ids of stopped sandboxes."""

_T = TypeVar("_T")


class Life(StrEnum):
    """A stage in the life of a sandbox id. Its attachments have stages of their own (nri_rdma.attach.states)."""

    IDLE = "idle"
    """Nothing is being decided for the sandbox. It may have attachments."""
    STARTING = "starting"
    """RunPodSandbox is being answered. The runtime may deliver the event twice: the second has no effect."""
    MISSED = "missed"
    """The sandbox started while the daemon was not connected, and a worker will decide which devices it gets. Its
    containers wait."""
    DECIDING = "deciding"
    """A worker decides about a missed sandbox."""
    ENDED = "ended"
    """The sandbox was stopped. Only its id is remembered."""


class LifeEvent(StrEnum):
    """An event in the life of a sandbox id."""

    RUN = "run"
    """RunPodSandbox begins."""
    RAN = "ran"
    """RunPodSandbox finished or was refused."""
    MISS = "miss"
    """The runtime lists the sandbox, which asks for devices but has no device, and no container that has run."""
    DECIDED = "decided"
    """The worker finished deciding about a missed sandbox."""
    STOP = "stop"
    """The sandbox was stopped."""


LIFE: Final[Mapping[tuple[Life, LifeEvent], Life]] = MappingProxyType(
    {
        (Life.IDLE, LifeEvent.RUN): Life.STARTING,
        (Life.STARTING, LifeEvent.RAN): Life.IDLE,
        (Life.IDLE, LifeEvent.MISS): Life.MISSED,
        (Life.STARTING, LifeEvent.MISS): Life.DECIDING,
        (Life.MISSED, LifeEvent.MISS): Life.MISSED,
        (Life.MISSED, LifeEvent.RUN): Life.DECIDING,
        (Life.MISSED, LifeEvent.DECIDED): Life.IDLE,
        (Life.DECIDING, LifeEvent.MISS): Life.DECIDING,
        (Life.DECIDING, LifeEvent.RAN): Life.MISSED,
        (Life.DECIDING, LifeEvent.DECIDED): Life.STARTING,
        **{(life, LifeEvent.STOP): Life.ENDED for life in Life},
        # A client may give a new sandbox the id of a stopped one.
        (Life.ENDED, LifeEvent.RUN): Life.STARTING,
        (Life.ENDED, LifeEvent.MISS): Life.MISSED,
    }
)
"""The next stage by stage and event. An event without a row has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A pod that asks for devices and does not have them, or that has containers without them."""

    pod: Pod
    why: str
    containers: tuple[str, ...] = ()
    """The running containers without them."""

    def without(self, container: str) -> Unserved | None:
        """Return what is left after a container of this name was made again with its devices; None if nothing is."""
        left = tuple(name for name in self.containers if name != container)
        return replace(self, containers=left) if left else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """RDMA devices that a container has from other programs, for `status`."""

    pod: str
    container: str
    what: str
    """The name of the CDI device that gave them, or "device nodes"."""
    devices: tuple[str, ...]
    source: str
    """Where the CDI device was found: the name of an Origin."""
    adopt: str
    """The administrator's setting for them, or "its own keys" if the CDI spec itself has nri-rdma's keys."""
    is_privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """The measured distance of a container's devices to its GPUs, for `status`."""

    pod: str
    container: str
    alignment: Alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChecked:
    """The result of checking the RDMA libraries in a container's image."""

    pod: str
    container: str
    container_id: str
    problems: tuple[UserspaceError, ...]
    """Why the libraries cannot use the container's devices."""
    unseen: str
    """Why the libraries could not be read; "" if they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The readings of specs and devices that were begun for a container, which is refused until they end.

    `nodes` are the unexplained device nodes of the container when they began.
    """

    nodes: NodesAt
    readings: tuple[Future[None], ...]


@dataclass(slots=True)
class LateFailure:
    """The attaches for a container that failed after the container was refused as not ready; they had gone on in the
    background."""

    times: int = 0
    why: str = ""
    """The last error."""
    is_told: bool = True
    """Whether a later attempt to create the container was refused with the last error already."""


@dataclass(slots=True, kw_only=True, eq=False)
class Sandbox:
    """The memory about one sandbox. The keys of its maps are container names. No lock protects its fields: each field
    is replaced as a whole, and each map has one writer at a time, the thread that reads the runtime's events or the
    worker that compares pods."""

    sandbox_id: str
    life: Life = Life.IDLE
    was_stopped: bool = False
    """Whether a sandbox with this id was stopped before. Then nothing is attached late, because this object may come
    from a start that raced with the stop."""
    failure: Unserved | None = None
    """The failure of its attach after RunPodSandbox was answered; the attach was undone."""
    unserved: Unserved | None = None
    """The devices that it lacks, if it runs without them according to the runtime's last list."""
    allocation: PodAllocation | None = None
    """What the kubelet allocated to its pod, if the kubelet reported it."""
    has_unseen_claims: bool = False
    """Whether the pod may have claims of nri-rdma's DRA driver according to the kubelet's checkpoint, and it was not
    found out yet which of them the containers name. Set when the runtime lists the pod."""
    unnamed: tuple[str, ...] = ()
    """The CDI devices of its pod's claims that no container names, and that were not attached at its start."""
    waited_at: float = 0.0
    """When a container last waited at the barrier, in seconds of `time.monotonic`."""
    answered: dict[str, str] = field(default_factory=dict)
    """The cgroups paths of containers whose CreateContainer was answered while nothing was attached. The guard (an OCI
    hook) lets some containers start only if there was such an answer."""
    late_failures: dict[str, LateFailure] = field(default_factory=dict)
    readings: dict[str, Begun] = field(default_factory=dict)
    sightings: dict[str, tuple[Sighting, ...]] = field(default_factory=dict)
    alignments: dict[str, Aligned] = field(default_factory=dict)
    images: dict[str, ImageChecked] = field(default_factory=dict)

    def remember_answer(self, container: str, cgroups_path: str) -> None:
        """Remember that CreateContainer was answered for a container that gets no devices. An earlier container of the
        same name is forgotten."""
        self.answered.pop(container, None)
        self.answered[container] = cgroups_path
        if len(self.answered) > KEPT_CONTAINERS:
            del self.answered[next(iter(self.answered))]

    def remember_late_failure(self, container: str, why: str) -> None:
        """Remember why devices could not be attached for a container when it was created, so that the container's next
        attempt is refused with this reason."""
        failed = self.late_failures.setdefault(container, LateFailure())
        failed.times, failed.why, failed.is_told = failed.times + 1, why, False
        if len(self.late_failures) > KEPT_CONTAINERS:
            del self.late_failures[next(iter(self.late_failures))]  # the oldest; the newest has yet to be reported


class Sandboxes:
    """All sandboxes about which anything is remembered, oldest first. Thread-safe."""

    def __init__(self, is_attached: Callable[[str], bool] = lambda _sandbox_id: False) -> None:
        """`is_attached` returns whether the sandbox with this id has attachments; such a sandbox is not forgotten."""
        self.is_attached = is_attached
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Sandbox | None] = OrderedDict()
        """The sandboxes by id; None for a stopped sandbox."""
        self._ended = 0
        """The number of stopped sandboxes in `_known`."""

    def get(self, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox's object; None if nothing is remembered or the sandbox was stopped. Takes no lock."""
        return self._known.get(sandbox_id)

    def take(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox's object; create it if nothing is remembered about the sandbox."""
        with self._lock:
            return self._take(sandbox_id)

    def step(self, sandbox_id: str, event: LifeEvent) -> bool:
        """Apply an event to the life of a sandbox according to the table LIFE. Return False, and change nothing, if
        LIFE has no row for the event. STOP drops everything but the id; no other event drops an object, because a
        worker may be about to write to it."""
        with self._lock:
            after = LIFE.get((self._life(sandbox_id), event))
            if after is None:
                return False
            if after is Life.ENDED:
                self._end(sandbox_id)
            else:
                self._take(sandbox_id).life = after
            return True

    def has_ended(self, sandbox_id: str) -> bool:
        """Return whether a sandbox with this id was stopped, even if one with the same id began since. The oldest ids
        are forgotten."""
        known = self._known.get(sandbox_id)
        return known.was_stopped if known is not None else sandbox_id in self._known

    def is_over(self, sandbox_id: str) -> bool:
        """Return whether the sandbox was stopped and no sandbox with the same id began since."""
        return sandbox_id in self._known and self._known.get(sandbox_id) is None

    def is_missed(self, sandbox_id: str) -> bool:
        """Return whether the sandbox started while the daemon was not connected to the runtime, and no worker has
        selected its devices yet."""
        known = self._known.get(sandbox_id)
        return known is not None and known.life in {Life.MISSED, Life.DECIDING}

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all sandboxes except `sandbox_ids` and those for which a thread is selecting devices now. The
        forgotten ones ended without an event."""
        with self._lock:
            for sandbox in self._all():
                if sandbox.sandbox_id not in sandbox_ids and sandbox.life not in {Life.STARTING, Life.DECIDING}:
                    del self._known[sandbox.sandbox_id]

    def namespace_removed(self, path: str) -> None:
        """Mark a sandbox as stopped if `path` was its network namespace and it lacks the devices that it asks for. Its
        end may come without an event of the runtime, and it has no attachment that would show the end."""
        for sandbox in self.all():
            if any(it is not None and it.pod.netns_path == path for it in (sandbox.unserved, sandbox.failure)):
                self.step(sandbox.sandbox_id, LifeEvent.STOP)

    def all(self) -> tuple[Sandbox, ...]:
        """Return the sandboxes that were not stopped, oldest first."""
        with self._lock:
            return self._all()

    def unserved(self) -> tuple[Unserved, ...]:
        """Return the pods that ask for devices, but run or wait without them."""
        found = (it for sandbox in self.all() for it in (sandbox.unserved, sandbox.failure))
        return tuple(it for it in found if it is not None)

    def sightings(self) -> tuple[Sighting, ...]:
        """Return the RDMA devices that containers have from other programs."""
        return tuple(it for sandbox in self.all() for seen in _values(sandbox.sightings) for it in seen)

    def alignments(self) -> tuple[Aligned, ...]:
        """Return how near the devices of containers are to the containers' GPUs."""
        return tuple(it for sandbox in self.all() for it in _values(sandbox.alignments))

    def images(self) -> tuple[ImageChecked, ...]:
        """Return the results of the checks of containers' images."""
        return tuple(it for sandbox in self.all() for it in _values(sandbox.images))

    # With the lock

    def _all(self) -> tuple[Sandbox, ...]:
        return tuple(it for it in self._known.values() if it is not None)

    def _life(self, sandbox_id: str) -> Life:
        known = self._known.get(sandbox_id)
        if known is not None:
            return known.life
        return Life.ENDED if sandbox_id in self._known else Life.IDLE

    def _take(self, sandbox_id: str) -> Sandbox:
        found = self._known.get(sandbox_id)
        if found is None:
            was_stopped = sandbox_id in self._known
            self._ended -= was_stopped
            found = self._known[sandbox_id] = Sandbox(sandbox_id=sandbox_id, was_stopped=was_stopped)
            self._evict()
        return found

    def _end(self, sandbox_id: str) -> None:
        was_counted = sandbox_id in self._known and self._known.pop(sandbox_id) is None
        self._known[sandbox_id] = None
        self._ended += not was_counted
        if self._ended > KEPT_ENDED:
            del self._known[next(key for key, known in self._known.items() if known is None)]
            self._ended -= 1

    def _evict(self) -> None:
        excess = len(self._known) - self._ended - KEPT_SANDBOXES
        if excess > 0:
            idle = (it for it in self._all() if it.life is Life.IDLE and not self.is_attached(it.sandbox_id))
            for sandbox in [it for it, _ in zip(idle, range(excess), strict=False)]:
                del self._known[sandbox.sandbox_id]


def _values(found: dict[str, _T]) -> tuple[_T, ...]:
    return tuple(found.copy().values())
