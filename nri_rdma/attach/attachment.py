"""One sandbox's attach: its state, what it holds, and who waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass

from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import Namespace
from nri_rdma.attach.record import SandboxRecord, State, attach_key
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Span, current_span

KEPT_CONTAINERS = 256
"""Names of containers that are remembered per sandbox: ephemeral ones may be added for as long as a pod lives."""


def cdi_devices_of(requests: Iterable[AttachedRequest | Placed]) -> frozenset[str]:
    """The CDI devices that these requests came with."""
    return frozenset(item.admitted.request.cdi_device for item in requests) - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What a sandbox is to be given."""

    placed: tuple[Placed, ...]
    rdma_cm: CharDevice | None

    @property
    def device_names(self) -> str:
        """The names of the devices, for people."""
        return ", ".join(device.name for item in self.placed for device in item.devices)


Choose = Callable[[], Chosen]
"""Chooses, in a thread that may block. Raises what refuses the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """How something is found after an attempt that failed, for which the host may have been the reason: `choose` is to
    be called, in a planner, when what `read` begins is done, good or bad."""

    read: Callable[[], Future[None]]
    choose: Choose


class Unstarted:
    """How often a container was answered for without a start, and when first, in seconds of `time.monotonic`; whether
    the guard has verified it since."""

    __slots__ = ("answers", "since", "verified")

    def __init__(self) -> None:
        self.answers = 1
        self.since = time.monotonic()
        self.verified = False


class Sandbox:
    """One sandbox that has, gets or had devices. Its worker writes it; others read it.

    `part` is "" for what was known when the sandbox started, else the container that came with more (a CDI device).
    `attempts` is how often its attach is tried before it is given up."""

    def __init__(self, pod: Pod, record: SandboxRecord | None = None, part: str = "", attempts: int = 1) -> None:
        self.pod = pod
        self._lock = threading.Lock()
        self.part = record.part if record is not None else part
        self.cdi_devices = cdi_devices_of(record.attached) if record is not None else frozenset()
        """The CDI devices for which it attaches, or has attached."""
        self.state = State.PLANNED
        self.record = record
        self.decided = Plan()
        """What the plan decided that is not written down yet: without what its links carry, nobody may undo it."""
        self.namespace: Namespace | None = None
        self.parent: Span | None = current_span()
        """The span of who began it."""
        self.planned: Future[None] = Future()
        """Done when it is decided what will be attached; its error is the refusal."""
        self.attach_done: Future[None] = Future()
        self.taken_up: Future[None] | None = None
        """Done when it is known what became of what an earlier daemon attached; None: this daemon began it."""
        self.attempt = 1
        self.attempts = attempts
        self.again: Again | None = None
        """Where the next attempt gets its devices from; None: it has those of the last one."""
        self.last_error = ""
        """Why the last attempt failed."""
        self.is_given_up = False
        """Whether it ends because its attach failed for the last time."""
        self.waits_for_older = False
        """Whether an older sandbox of the pod must give its devices back before this one is planned."""
        self._is_planning = False
        self._settled: list[Future[None]] = []
        self.numbers_from = 0
        """The newest of the kernel's device events when the character devices' numbers were read."""
        self.looked_again: Future[None] | None = None
        """The last time that they were read anew; None: they are as the attach found them."""
        self.undo_done: Future[None] | None = None
        self.undo_error = ""
        self.cancel_retry: Callable[[], None] | None = None
        """Cancels what is due after a pause: the next attempt, or the next undo."""
        self.is_home = False
        """Undone, forgotten by the journal, its namespace let go; only on_gone is missing."""
        self.devices_done = 0
        self.devices_total = 0
        self.containers: dict[str, str] = {}
        """The cgroups path of each container by its name: a container that is made again takes the old one's place."""

        self.unstarted: dict[str, Unstarted] = {}
        """The containers for which CreateContainer was answered and StartContainer has not come, by name."""

        self.unguarded: set[str] = set()
        """The containers that started after our answer without that a guard asked, by name."""

    @property
    def ends(self) -> bool:
        """Whether it is being taken down, or has been: it never comes back from that."""
        return self.undo_done is not None

    def refuse_ended(self) -> None:
        """Raise NotReadyError for one that ends."""
        if self.ends:
            raise interrupted(self.pod)

    def advance(self, state: State) -> None:
        """Enter the next state of its life. Raises NotReadyError where it ends instead."""
        with self._lock:
            self.refuse_ended()
            self.state = state

    def end_from_outside(self) -> bool:
        """It ends from now on. True: who asked sees to its undo. False: it ended before, or is being planned just now,
        and who plans does."""
        with self._lock:
            return self._end() and not self._is_planning

    def give_up(self) -> bool:
        """It ends from now on because its attach failed, and who worked on it undoes it. False: it ended before."""
        with self._lock:
            self.is_given_up = self._end()
            return self.is_given_up

    def _end(self) -> bool:
        """With the lock."""
        if self.ends:
            return False
        self.state = State.RETURNING
        self.undo_done = Future()
        return True

    def start_planning(self) -> bool:
        """Whether it may be planned: not one that ends."""
        with self._lock:
            self._is_planning = not self.ends
            return self._is_planning

    def stop_planning(self) -> bool:
        """The plan is there, or failed; whether the sandbox ended meanwhile."""
        with self._lock:
            self._is_planning = False
            return self.ends

    def settle_plan(self) -> None:
        """Tell who waits for the plan that it is there."""
        self._settle((self.planned,), None)

    def settle(self, error: BaseException | None = None) -> None:
        """Tell who waits how the attach ended; what was told before stays."""
        self._settle((self.planned, self.attach_done), error)

    def _settle(self, futures: tuple[Future[None], ...], error: BaseException | None) -> None:
        with self._lock:
            pending = [future for future in futures if future not in self._settled]
            self._settled.extend(pending)
        for future in pending:  # without the lock: who waits is called
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def answered(self, name: str) -> int:
        """CreateContainer of this container is answered; how often since it last started."""
        known = self.unstarted.get(name)
        if known is not None:
            known.answers += 1
            known.verified = False
            return known.answers
        if len(self.unstarted) < KEPT_CONTAINERS:
            self.unstarted[name] = Unstarted()
        return 1

    def started(self, name: str) -> None:
        """StartContainer of this container has come: who guards it has asked before. The guard sees annotations, so of
        a pod without them nothing can be said."""
        answered = self.unstarted.pop(name, None)
        if answered is None or not self._asks_by_annotation():
            return
        if answered.verified:
            self.unguarded.discard(name)
        elif len(self.unguarded) < KEPT_CONTAINERS:
            self.unguarded.add(name)

    def _asks_by_annotation(self) -> bool:
        attached = self.record.attached if self.record is not None else ()
        return any(not item.admitted.request.cdi_device for item in attached)

    def remember_container(self, name: str, cgroups_path: str) -> None:
        """For those who ask what it uses. Forgotten with the sandbox; beyond a bound nothing more is remembered."""
        if name in self.containers or len(self.containers) < KEPT_CONTAINERS:
            self.containers[name] = cgroups_path

    def covers(self, cdi_device: str, container: str) -> bool:
        """Whether the container gets what was attached for that CDI device; False as long as that is not known."""
        if self.record is None:
            return False
        requests = [item.admitted.request for item in self.record.attached]
        return all(it.scope.covers(container) for it in requests if it.cdi_device == cdi_device)

    @property
    def key(self) -> str:
        """Its name in journal and allocations."""
        return attach_key(self.pod.sandbox_id, self.part)


def interrupted(pod: Pod) -> NotReadyError:
    """The refusal of a sandbox that ends while it is being attached."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "this sandbox is being taken down, its devices go back",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )


def attached_of(parts: tuple[Sandbox, ...]) -> tuple[tuple[AttachedRequest, ...], CharDevice | None]:
    """All that the parts of a sandbox attached, and the node's rdma_cm."""
    if len(parts) == 1 and parts[0].record is not None:
        return parts[0].record.attached, parts[0].record.rdma_cm
    records = [it.record for it in parts if it.record is not None and not it.ends]
    rdma_cm = next((record.rdma_cm for record in records if record.rdma_cm is not None), None)
    return tuple(item for record in records for item in record.attached), rdma_cm
