"""What the engine remembers of a sandbox besides what is attached: one object, which ends with the sandbox.

A pod that asks for nothing and shows nothing has no object. A sandbox that was stopped is remembered by its id alone,
since containers may still be created after that: nothing is attached for them any more.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
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
"""More than any node runs. Beyond it the oldest one is forgotten that has nothing attached and is not starting."""
KEPT_ENDED = 1024
"""Ids of sandboxes that were stopped: containers may be created after the end."""

_T = TypeVar("_T")


class Life(StrEnum):
    """A stage in the life of a sandbox id, as the engine sees it; its attachments have their own stages."""

    IDLE = "idle"
    """Nothing is being decided for it: its attachments, if it has any, say the rest."""
    STARTING = "starting"
    """RunPodSandbox is being answered. The same event may be delivered twice: the second has no effect."""
    MISSED = "missed"
    """It started while nobody listened, and a worker will decide what it gets. Its containers wait."""
    DECIDING = "deciding"
    """A worker decides about a missed one."""
    ENDED = "ended"
    """It was stopped. Only its id is remembered."""


class LifeEvent(StrEnum):
    """An event in the life of a sandbox id."""

    RUN = "run"
    RAN = "ran"
    """RunPodSandbox finished, or was refused."""
    MISS = "miss"
    """The runtime lists it, it asks for devices, and it has none and no container."""
    DECIDED = "decided"
    STOP = "stop"


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
        # A client may give a sandbox the id of one that was stopped.
        (Life.ENDED, LifeEvent.RUN): Life.STARTING,
        (Life.ENDED, LifeEvent.MISS): Life.MISSED,
    }
)
"""What an event makes of a sandbox id; an event without a row has no effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A pod that asks for devices and does not have them, or has containers without."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A container with RDMA devices from others: `what` is the CDI device, or "device nodes"."""

    pod: str
    container: str
    what: str
    devices: tuple[str, ...]
    source: str
    adopt: str
    is_privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """The measured distance of a container's devices to its GPUs, for `status`."""

    pod: str
    container: str
    alignment: Alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageChecked:
    """The check of the libraries in a container's image: why they cannot use its devices, and why they could not be
    read."""

    pod: str
    container: str
    container_id: str
    problems: tuple[UserspaceError, ...]
    unseen: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Readings begun for a container that was refused until they end, and the device nodes that it had."""

    nodes: NodesAt
    readings: tuple[Future[None], ...]


@dataclass(slots=True)
class LateFailure:
    """A late attach that failed after its container was told to come again."""

    times: int = 0
    why: str = ""
    is_told: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class Sandbox:
    """One sandbox. Its maps are by the name of a container. Written under no lock: each field is replaced whole, and
    each map has one writer, the runtime's reader or the worker that reconciles."""

    sandbox_id: str
    life: Life = Life.IDLE
    was_stopped: bool = False
    """Whether a sandbox of this id was stopped before: then nothing is attached late, since a start that races the stop
    may be what is remembered here."""
    failure: Unserved | None = None
    """Its attach failed after RunPodSandbox was answered, and was undone."""
    unserved: Unserved | None = None
    """The runtime's last list showed that it runs without what it asks for."""
    allocation: PodAllocation | None = None
    """What the kubelet said that it allocated."""
    has_unseen_claims: bool = False
    """The runtime listed it, the kubelet's checkpoint may have claims of ours for its pod, and nobody has looked yet
    which of them its containers name."""
    unnamed: tuple[str, ...] = ()
    """The CDI devices of its pod's claims that no container names, and that were not attached at its start."""
    waited_at: float = 0.0
    """When a container last waited at the barrier, in seconds of `time.monotonic`."""
    answered: dict[str, str] = field(default_factory=dict)
    """The cgroups paths of containers that were answered for while nothing was attached: the guard asks about them."""
    late_failures: dict[str, LateFailure] = field(default_factory=dict)
    readings: dict[str, Begun] = field(default_factory=dict)
    sightings: dict[str, tuple[Sighting, ...]] = field(default_factory=dict)
    alignments: dict[str, Aligned] = field(default_factory=dict)
    images: dict[str, ImageChecked] = field(default_factory=dict)

    def remember_answer(self, container: str, cgroups_path: str) -> None:
        """Remember that a container gets nothing. One that is made again takes the old one's place."""
        self.answered.pop(container, None)
        self.answered[container] = cgroups_path
        if len(self.answered) > KEPT_CONTAINERS:
            del self.answered[next(iter(self.answered))]

    def remember_late_failure(self, container: str, why: str) -> None:
        """Remember why a late attach for a container failed, until that is reported."""
        failed = self.late_failures.setdefault(container, LateFailure())
        failed.times, failed.why, failed.is_told = failed.times + 1, why, False
        if len(self.late_failures) > KEPT_CONTAINERS:
            del self.late_failures[next(iter(self.late_failures))]  # the oldest; the newest has yet to be reported


class Sandboxes:
    """All sandboxes of which anything is remembered, oldest first. Safe for use by several threads."""

    def __init__(self, is_attached: Callable[[str], bool] = lambda _sandbox_id: False) -> None:
        """`is_attached` returns whether the sandbox of an id has attachments: such a sandbox is not forgotten."""
        self.is_attached = is_attached
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Sandbox | None] = OrderedDict()
        """By id; None for those that were stopped."""
        self._ended = 0
        """How many of them are None."""

    def get(self, sandbox_id: str) -> Sandbox | None:
        """Return what is remembered of the sandbox, if anything is. Takes no lock."""
        return self._known.get(sandbox_id)

    def take(self, sandbox_id: str) -> Sandbox:
        """Return the sandbox's object, a new one when nothing was remembered of it."""
        with self._lock:
            return self._take(sandbox_id)

    def step(self, sandbox_id: str, event: LifeEvent) -> bool:
        """Apply an event to the life of a sandbox as LIFE says. Return False when LIFE has no row for the event:
        nothing changed.

        STOP drops everything but the id. Nothing else drops an object here: a worker may be about to write to it.
        """
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
        """Return whether the sandbox was stopped, as far back as that is remembered."""
        known = self._known.get(sandbox_id)
        return known.was_stopped if known is not None else sandbox_id in self._known

    def is_over(self, sandbox_id: str) -> bool:
        """Return whether the sandbox was stopped, and nothing began with its id since."""
        return sandbox_id in self._known and self._known.get(sandbox_id) is None

    def is_missed(self, sandbox_id: str) -> bool:
        """Return whether the sandbox started while nobody listened, and a worker has not decided about it yet."""
        known = self._known.get(sandbox_id)
        return known is not None and known.life in {Life.MISSED, Life.DECIDING}

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all other sandboxes: they ended, and no event said so."""
        with self._lock:
            for sandbox in self._all():
                if sandbox.sandbox_id not in sandbox_ids and sandbox.life not in {Life.STARTING, Life.DECIDING}:
                    del self._known[sandbox.sandbox_id]

    def namespace_removed(self, path: str) -> None:
        """Stop the sandboxes that lack what they ask for and whose network namespace was at this path. An event may
        never tell their end, and they have no attachment whose end would be seen."""
        for sandbox in self.all():
            if any(it is not None and it.pod.netns_path == path for it in (sandbox.unserved, sandbox.failure)):
                self.step(sandbox.sandbox_id, LifeEvent.STOP)

    def all(self) -> tuple[Sandbox, ...]:
        """Return those that were not stopped, oldest first."""
        with self._lock:
            return self._all()

    def unserved(self) -> tuple[Unserved, ...]:
        """Return the pods that ask for devices and run, or wait, without them."""
        found = (it for sandbox in self.all() for it in (sandbox.unserved, sandbox.failure))
        return tuple(it for it in found if it is not None)

    def sightings(self) -> tuple[Sighting, ...]:
        """Return the containers with RDMA devices from others."""
        return tuple(it for sandbox in self.all() for seen in _values(sandbox.sightings) for it in seen)

    def alignments(self) -> tuple[Aligned, ...]:
        """Return how near the devices of containers turned out to be to their GPUs."""
        return tuple(it for sandbox in self.all() for it in _values(sandbox.alignments))

    def images(self) -> tuple[ImageChecked, ...]:
        """Return what became of the checks of containers' images."""
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
