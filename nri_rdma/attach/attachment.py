"""One attach of a sandbox: its state, the devices it holds, and the callers that wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple  # Any: values of the fields of Now, which Now checks

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
    """Return the names of the CDI devices that these requests were made from; a request of an annotation has none."""
    return frozenset(item.admitted.request.cdi_device for item in requests) - {""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Devices chosen for a sandbox, not attached yet. `rdma_cm` is the node's /dev/infiniband/rdma_cm, if it has
    one."""

    placed: tuple[Placed, ...]
    rdma_cm: CharDevice | None

    @property
    def device_names(self) -> str:
        """Return the names of the devices, comma-separated, for log lines and errors."""
        return ", ".join(device.name for item in self.placed for device in item.devices)


Select = Callable[[], Selection]
"""Chooses the devices of an attachment. It runs in a thread that may block, and raises the error that refuses the
sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """A new choice of devices after a failed attempt, because a change on the host may have caused the failure. `read`
    starts a rescan of the node. A planner thread calls `choose` once the rescan has ended, successfully or not."""

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
"""The phase that the journal and `status` show for a state. States that are missing here are shown as "planned"."""
_NOT_SEEN: Final = frozenset({State.LEFT, State.SEEKING})


class Now(NamedTuple):
    """The state of an attachment at one moment, as an immutable tuple of fields. Each change replaces the whole tuple,
    so readers need no lock."""

    state: State = State.QUEUED
    record: SandboxRecord | None = None
    decided: Plan = Plan()
    """The plan that is decided but not in the journal yet. It must not be undone before the links in it have been
    captured."""
    namespace: Namespace | None = None
    cdi_devices: frozenset[str] = frozenset()
    """The CDI devices whose requests this attachment serves."""
    attempt: int = 1
    devices_done: int = 0
    devices_total: int = 0
    last_error: str = ""
    """Why the last attempt failed."""
    ended_by: Span | None = None
    """The trace span of the call that ended the attachment."""
    undo_error: str = ""
    """Why the last undo failed."""
    undo_failures: int = 0
    is_given_up: bool = False
    """Whether the attachment ends because its last attempt failed; False if the runtime or the kernel ended its
    sandbox."""
    numbers_from: int = 0
    """The sequence number of the kernel's newest device event when the major and minor numbers of the character devices
    were read."""
    looked_again: Future[None] | None = None
    """The latest reread of device names and of character device numbers, running or done; None if there was none since
    the attach."""
    gids_are_old: bool = False
    """Whether the next reread of device names and numbers must read the GIDs, too."""

    @property
    def phase(self) -> Phase:
        """Return the phase that the journal and `status` show for the state."""
        return SHOWN.get(self.state, Phase.PLANNED)

    @property
    def ends(self) -> bool:
        """Return whether the attachment is being taken down or is gone. It never becomes usable again."""
        return self.state in ENDING


def unchanged(now: Now) -> Now:
    """Return `now` without a change. This is the default of the parameter `change` of `Attachment.step`, which then
    replaces only the state."""
    return now


class Attachment:
    """One attach of a sandbox, from its plan to the release of its devices. Safe for use by several threads.

    `part` is "" for the devices that were requested before the sandbox started; otherwise it names the container that
    brought further devices (CDI devices or shares). `attempts` is how often the attach is tried before it is given up.
    `select` chooses the devices, in a planner thread; if `again` is given, its `choose` replaces `select` from the
    second attempt on.
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
        """Whether an older sandbox of this pod had to return its devices before this attachment could be planned."""
        self.parent: Span | None = current_span()
        """The trace span in which the attachment was created."""
        self.planned: Future[None] = Future()
        """Done when the plan is decided; its exception is the error that refuses the sandbox."""
        self.attach_done: Future[None] = Future()
        """Done when the devices are attached and containers may start; its exception says why they never will be."""
        self.taken_up: Future[None] | None = Future() if state is State.LEFT else None
        """Done when the state of an earlier daemon's attachment has been checked; None if this daemon began the
        attachment."""
        self.returned: Future[None] = Future()
        """Done when the devices are on the host again, perhaps before their configuration is restored. From then on the
        pod's namespace is no longer needed."""
        self.home: Future[None] = Future()
        """Done when the host has its devices and their configuration as before the attach. The devices are still
        reserved for the pod."""
        self.undo_done: Future[None] = Future()
        """Done when the devices are free for other pods and the attachment is forgotten."""
        cdi_devices = cdi_devices_of(record.attached) if record is not None else frozenset[str]()
        self.now = Now(state=state, record=record, cdi_devices=cdi_devices)
        self._lock = threading.Lock()
        self._settled: list[Future[None]] = []
        self.beside: Iterable[Attachment] = ()
        """The attachments that the sandbox had when this one was created."""
        self.containers = SandboxContainers()

    @property
    def is_awaited(self) -> bool:
        """Return whether the caller waits for the whole attach, not only for the plan, and refuses the pod or the
        container if the attach fails. Such an attach is tried once."""
        return self.attempts == 1

    def step(self, event: Event, change: Callable[[Now], Now] = unchanged) -> tuple[Effect, ...] | None:
        """Enter the state that TABLE gives for the event, and let `change` replace the other fields. Return the actions
        (Effect) that the caller must carry out, in order. Return None, and change nothing, if TABLE has no row for the
        event."""
        with self._lock:
            row = TABLE.get((self.now.state, event))
            if row is None:
                return None
            self.now = change(self.now)._replace(state=row[0])
            return row[1]

    def remember(self, chosen: Selection) -> None:
        """Make `chosen` the devices of later attempts. An attachment with an `Again` chooses anew instead."""
        self.select = lambda: chosen

    def change(self, **fields: Any) -> None:
        """Replace the named fields of `now`, the tuple that holds the attachment's state. Its field `state` is replaced
        by `step` only."""
        with self._lock:
            self.now = self.now._replace(**fields)

    @property
    def state(self) -> Phase:
        """Return the phase that the journal and `status` show for the attachment."""
        return self.now.phase

    @property
    def shown(self) -> Phase:
        """Return the phase to show to people. An attachment of an earlier daemon shows the phase in its journal record
        until this daemon has checked it."""
        now = self.now
        return now.record.state if now.state in _NOT_SEEN and now.record is not None else now.phase

    @property
    def ends(self) -> bool:
        """Return whether the attachment is being taken down or is gone. It never becomes usable again."""
        return self.now.ends

    def refuse_ended(self) -> None:
        """Raise NotReadyError if the attachment is being taken down."""
        if self.ends:
            raise interrupted(self.pod)

    def settle_plan(self) -> None:
        """Set the future for the plan to success, which wakes those who wait for it."""
        self._settle((self.planned,), None)

    def settle(self, error: BaseException | None = None) -> None:
        """Set the results of the futures for the plan and for the attach: success, or `error` if given. A result that
        is already set stays."""
        self._settle((self.planned, self.attach_done), error)

    def settle_returned(self) -> None:
        """Set the future for the return of the devices, which wakes those who wait until the devices are on the host.
        Further calls have no effect."""
        self._settle((self.returned,), None)

    def _settle(self, futures: tuple[Future[None], ...], error: BaseException | None) -> None:
        with self._lock:
            pending = [future for future in futures if future not in self._settled]
            self._settled.extend(pending)
        for future in pending:  # without the lock, because this runs the callbacks of those who wait
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def covers(self, name: str, container: str) -> bool:
        """Return whether the container is to get everything attached for `name`, a CDI device or a share. Return False
        while the attachment has no record."""
        if self.now.record is None:
            return False
        requests = [item.admitted.request for item in self.now.record.attached]
        return all(it.scope.covers(container) for it in requests if it.is_for(name))

    @property
    def key(self) -> str:
        """Return the key of this attachment in the journal and in the reservations."""
        return attach_key(self.pod.sandbox_id, self.part)


def interrupted(pod: Pod) -> NotReadyError:
    """Return the error for a sandbox that ends while its devices are being attached."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "this sandbox is being taken down, and its devices return to the host",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )
