"""One attach of a sandbox: its state, what it holds, and who waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple  # Any: fields of Now, which it checks

from nri_rdma.attach.containers import SandboxContainers
from nri_rdma.attach.plan import Plan
from nri_rdma.attach.port import Namespace
from nri_rdma.attach.record import Phase, SandboxRecord, attach_key
from nri_rdma.attach.states import ENDING, TABLE, Effect, Event, State
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Span, current_span


def cdi_devices_of(requests: Iterable[AttachedRequest | Placed]) -> frozenset[str]:
    """Return the CDI devices that these requests came with."""
    return frozenset(item.admitted.request.cdi_device for item in requests) - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Devices chosen for a sandbox."""

    placed: tuple[Placed, ...]
    rdma_cm: CharDevice | None

    @property
    def device_names(self) -> str:
        """Return the names of the devices, for people."""
        return ", ".join(device.name for item in self.placed for device in item.devices)


Select = Callable[[], Selection]
"""Chooses, in a thread that may block. Raises what refuses the sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A new choice of devices after a failed attempt, because the host may have caused the failure. `read` starts a
    rescan of the node; a planner calls `choose` once that rescan has ended, whether it succeeded or not."""

    read: Callable[[], Future[None]]
    choose: Select


SHOWN: Final = MappingProxyType(
    {
        State.ATTACHING: Phase.ATTACHING,
        State.ATTACHED: Phase.ATTACHED,
        State.GONE: Phase.GONE,
        **dict.fromkeys(ENDING - {State.GONE}, Phase.RETURNING),
    }
)
"""The word of journal and `status` for a state; all others are "planned"."""
_NOT_SEEN: Final = frozenset({State.LEFT, State.SEEKING})


class Now(NamedTuple):
    """The state of an attachment at one moment. It is replaced as a whole, so a reader needs no lock; a dozen times for
    each attach, so it is a tuple."""

    state: State = State.QUEUED
    record: SandboxRecord | None = None
    decided: Plan = Plan()
    """What the plan decided and the journal does not have yet: before its links are captured nobody may undo it."""
    namespace: Namespace | None = None
    cdi_devices: frozenset[str] = frozenset()
    """The CDI devices for which it attaches, or has attached."""
    attempt: int = 1
    devices_done: int = 0
    devices_total: int = 0
    last_error: str = ""
    """Why the last attempt failed."""
    ended_by: Span | None = None
    """The span of who ended it."""
    undo_error: str = ""
    """Why the last undo failed."""
    undo_failures: int = 0
    is_given_up: bool = False
    """Whether it ends because its attach failed for the last time, and not because somebody ended it."""
    numbers_from: int = 0
    """The newest of the kernel's device events when the character devices' numbers were read."""
    looked_again: Future[None] | None = None
    """The last time that names and numbers were read again; None: they are as the attach found them."""
    gids_are_old: bool = False
    """Whether its GIDs are to be read with the names and numbers, the next time."""

    @property
    def phase(self) -> Phase:
        """Return the word of journal and `status` for the state."""
        return SHOWN.get(self.state, Phase.PLANNED)

    @property
    def ends(self) -> bool:
        """Return whether it is being taken down, or has been: it never comes back from that."""
        return self.state in ENDING


def unchanged(now: Now) -> Now:
    """Change nothing but the state."""
    return now


class Attachment:
    """One attach of a sandbox that has, gets or had devices. Safe for use by several threads.

    `part` is "" for what was known when the sandbox started, else the container that came with more (a CDI device).
    `attempts` is how often its attach is tried before it is given up. `select` selects its devices in a planner;
    `again` does for every attempt after the first, if there is one.
    """

    def __init__(
        self,
        pod: Pod,
        record: SandboxRecord | None = None,
        part: str = "",
        attempts: int = 1,
        *,
        select: Select | None = None,
        again: Again | None = None,
        state: State = State.QUEUED,
    ) -> None:
        self.pod = pod
        self.part = record.part if record is not None else part
        self.attempts = attempts
        self.select = select
        self.again = again
        self.waits_for_older = state is State.WAITING
        """Whether an older sandbox of the pod had to give its devices back before this one was planned."""
        self.parent: Span | None = current_span()
        """The span of who began it."""
        self.planned: Future[None] = Future()
        """Done when it is decided what will be attached; its error is the refusal."""
        self.attach_done: Future[None] = Future()
        """Done when containers may have it; its error is why they never will."""
        self.taken_up: Future[None] | None = Future() if state is State.LEFT else None
        """Done when it is known what became of what an earlier daemon attached; None: this daemon began it."""
        self.returned: Future[None] = Future()
        """Done when its devices are on the host, perhaps not yet as they were: its namespace is no longer needed."""
        self.home: Future[None] = Future()
        """Done when the host is as before; its devices are not free for others yet."""
        self.undo_done: Future[None] = Future()
        """Done when its devices are free, too, and nothing of it is known any more."""
        cdi_devices = cdi_devices_of(record.attached) if record is not None else frozenset[str]()
        self.now = Now(state=state, record=record, cdi_devices=cdi_devices)
        self._lock = threading.Lock()
        self._settled: list[Future[None]] = []
        self.beside: Iterable[Attachment] = ()
        """The attachments that the sandbox had before this one."""
        self.containers = SandboxContainers()

    @property
    def is_awaited(self) -> bool:
        """Return whether who began it waits for the attach itself, and refuses the pod or container if it fails."""
        return self.attempts == 1

    def step(self, event: Event, change: Callable[[Now], Now] = unchanged) -> tuple[Effect, ...] | None:
        """Enter the state that TABLE says, with what `change` makes of the rest. Return the effects, which the caller
        carries out in their order; None when the table has no row for the event, and nothing changed."""
        with self._lock:
            row = TABLE.get((self.now.state, event))
            if row is None:
                return None
            self.now = change(self.now)._replace(state=row[0])
            return row[1]

    def remember(self, chosen: Selection) -> None:
        """Have attempts without `again` get the same devices."""
        self.select = lambda: chosen

    def change(self, **fields: Any) -> None:
        """Replace fields of `now` other than its state."""
        with self._lock:
            self.now = self.now._replace(**fields)

    @property
    def state(self) -> Phase:
        """Return the word of journal and `status` for its state."""
        return self.now.phase

    @property
    def shown(self) -> Phase:
        """Return the same for people; the journal's word for what an earlier daemon left and nobody has checked yet."""
        now = self.now
        return now.record.state if now.state in _NOT_SEEN and now.record is not None else now.phase

    @property
    def record(self) -> SandboxRecord | None:
        return self.now.record

    @property
    def namespace(self) -> Namespace | None:
        return self.now.namespace

    @property
    def cdi_devices(self) -> frozenset[str]:
        return self.now.cdi_devices

    @property
    def attempt(self) -> int:
        return self.now.attempt

    @property
    def last_error(self) -> str:
        return self.now.last_error

    @property
    def undo_error(self) -> str:
        return self.now.undo_error

    @property
    def is_given_up(self) -> bool:
        return self.now.is_given_up

    @property
    def numbers_from(self) -> int:
        return self.now.numbers_from

    @property
    def looked_again(self) -> Future[None] | None:
        return self.now.looked_again

    @property
    def ends(self) -> bool:
        """Return whether it is being detached, or has been: it never leaves that state."""
        return self.now.ends

    def refuse_ended(self) -> None:
        """Raise NotReadyError if the attachment is ending."""
        if self.ends:
            raise interrupted(self.pod)

    def settle_plan(self) -> None:
        """Notify those who wait for the plan that it is decided."""
        self._settle((self.planned,), None)

    def settle(self, error: BaseException | None = None) -> None:
        """Notify those who wait of the attach's result; a result that was set before stays."""
        self._settle((self.planned, self.attach_done), error)

    def settle_returned(self) -> None:
        """Notify those who wait for the devices to be on the host; again is no error."""
        self._settle((self.returned,), None)

    def _settle(self, futures: tuple[Future[None], ...], error: BaseException | None) -> None:
        with self._lock:
            pending = [future for future in futures if future not in self._settled]
            self._settled.extend(pending)
        for future in pending:  # without the lock: who waits is called
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def covers(self, name: str, container: str) -> bool:
        """Return whether the container gets what was attached for that CDI device or share; False as long as that is
        not known."""
        if self.record is None:
            return False
        requests = [item.admitted.request for item in self.record.attached]
        return all(it.scope.covers(container) for it in requests if it.is_for(name))

    @property
    def key(self) -> str:
        """Return its name in journal and reservations."""
        return attach_key(self.pod.sandbox_id, self.part)


def interrupted(pod: Pod) -> NotReadyError:
    """Return the error that refuses a sandbox which ends while it is being attached."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "this sandbox is being taken down, its devices go back",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )
