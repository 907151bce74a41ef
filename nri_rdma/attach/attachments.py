"""All attachments of the node: they begin and end here.

An attachment is one attach of a sandbox's devices. Its states and events are in the table of nri_rdma.attach.states,
and nri_rdma.attach.state_machine carries out the actions that follow. Attachments are keyed by sandbox id, because two
sandboxes of one pod UID may exist at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Final

from nri_rdma.attach.attachment import Again, Attachment, Select, Selection, cdi_devices_of
from nri_rdma.attach.holdings import NOTHING, Holdings
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.state_machine import StateMachine
from nri_rdma.attach.states import Effect, Event, State
from nri_rdma.attach.survey import placed_of
from nri_rdma.attach.tasks import Tasks
from nri_rdma.attach.timers import Schedule, start_timer
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.workers import Workers

ATTEMPTS = 3
"""How often the attach of an already started sandbox is tried. Only the daemon can retry it: the runtime sends no
further call."""


_UNDER_WAY: Final = frozenset({State.RETURNING, State.HOME, State.GONE})
"""The states in which the return of devices runs or is queued, or has just ended and the attachment is not forgotten
yet. While it waits for a retry, an attachment is in another state."""


class Attachments:
    """All attachments of the node. Any thread may call the public methods. Only `is_there` blocks on the kernel."""

    def __init__(
        self,
        tasks: Tasks,
        workers: Workers,
        *,
        on_gone: Callable[[str], None],
        planners: Workers | None = None,
        schedule: Schedule = start_timer,
    ) -> None:
        """`on_gone` is called with the key of an attachment whose devices are restored on the host; if it raises, it is
        called again after a pause. `planners` are the threads that make plans, so that a plan does not queue behind
        attaches. If it is None, `workers` make the plans."""
        self._tasks = tasks
        self.lost = tasks.lost
        """Returns the netdevs that the host has lost in pods since the daemon's start."""
        self._workers = workers
        self.on_begun: list[Callable[[Attachment], None]] = []
        """Functions that are called with each new attachment, and with each one that an earlier daemon left. They must
        not block."""
        self._lock = threading.Lock()
        self._attachments: dict[str, dict[str, Attachment]] = {}
        """The attachments by sandbox id, then by `Attachment.part`. A sandbox without attachments has no entry."""
        self._machine = StateMachine(
            tasks,
            workers,
            planners or workers,
            schedule,
            look_again=self.look_again,
            on_gone=on_gone,
            forget=self._remove,
        )

    # -- who exists --------------------------------------------------------------------------------------------------

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the sandbox of that id has attachments."""
        return sandbox_id in self._attachments

    def get(self, sandbox_id: str) -> Attachment | None:
        """Return the attachment of the devices requested before the sandbox started; None if there is none."""
        return self._attachments.get(sandbox_id, {}).get("")

    def of(self, sandbox_id: str) -> Holdings:
        """Return all attachments of the sandbox, oldest first."""
        parts = self._attachments.get(sandbox_id)
        return Holdings(tuple(parts.values())) if parts is not None else NOTHING  # one step of the interpreter: no lock

    def all(self) -> tuple[Attachment, ...]:
        """Return all attachments of all sandboxes, oldest first."""
        with self._lock:
            return tuple(attachment for parts in self._attachments.values() for attachment in parts.values())

    def held(self) -> int:
        """Return the number of network namespaces that the daemon holds open. While a namespace is open, the kernel
        does not return its devices to the host."""
        return sum(1 for attachment in self.all() if attachment.now.namespace is not None)

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's network namespace exists; True for a pod on the host's network. Blocks on the
        kernel: only for workers."""
        return self._tasks.is_there(pod)

    def watch_end(self, pod: Pod) -> None:
        """Watch for the end of the pod's namespace, even if nothing is attached to the pod."""
        self._tasks.watch_end(pod)

    def _add(self, attachment: Attachment) -> None:
        with self._lock:
            self._attachments.setdefault(attachment.pod.sandbox_id, {})[attachment.part] = attachment
        for listener in self.on_begun:
            listener(attachment)

    def _remove(self, attachment: Attachment) -> None:
        with self._lock:
            parts = self._attachments.get(attachment.pod.sandbox_id, {})
            if parts.get(attachment.part) is attachment:
                del parts[attachment.part]
                if not parts:
                    del self._attachments[attachment.pod.sandbox_id]

    # -- beginning ---------------------------------------------------------------------------------------------------

    def begin(
        self,
        pod: Pod,
        placed: tuple[Placed, ...],
        rdma_cm: CharDevice | None,
        part: str = "",
        attempts: int = 1,
        again: Again | None = None,
    ) -> Attachment:
        """Start to plan and attach the devices in `placed`, and return the attachment at once. Its future `planned`
        raises the error that refuses the request; its future `attach_done` is done when the devices are attached.

        `part` is "", or the container that brought these devices after the sandbox started. `attempts` is how often the
        attach is tried in all; `again` chooses the devices for later attempts.
        """
        chosen = Selection(placed=placed, rdma_cm=rdma_cm)
        attachment = Attachment(pod, part=part, attempts=attempts, select=lambda: chosen, again=again)
        attachment.change(cdi_devices=cdi_devices_of(placed))
        attachment.beside = self.of(pod.sandbox_id)
        self._add(attachment)
        self._machine.carry_out(Effect.QUEUE_PLAN, attachment)
        return attachment

    def begin_after(
        self,
        older: Collection[Future[None]],
        pod: Pod,
        choose: Select,
        attempts: int = 1,
        again: Again | None = None,
    ) -> Attachment:
        """Start an attachment once the undos in `older` are done. A planner thread then calls `choose`, which selects
        the devices. `attempts` is how often the attach is tried in all; `again` selects the devices for later
        attempts."""
        attachment = Attachment(pod, attempts=attempts, select=choose, again=again, state=State.WAITING)
        self._add(attachment)
        joined(older).add_done_callback(lambda _done: self._machine.feed(attachment, Event.OLDER_HOME))
        return attachment

    def recover(self, on_record: Callable[[SandboxRecord], None], *, later: bool = False) -> tuple[NriRdmaError, ...]:
        """Recover the attachments in the journal of an earlier daemon. Workers keep a complete attach, repeat an
        interrupted one, and return the devices of a pod that is gone.

        Call it once, before the daemon accepts requests. `on_record` is called first, with each journal record. With
        `later`, recovery waits for a call of `take_up`, and the sandboxes' containers wait for it; a container that no
        runtime lists as a pod is recovered at once. Return one error for each unreadable journal file.
        """
        records, errors = self._tasks.recorded()
        for record in sorted(records, key=lambda it: (it.pod.sandbox_id, it.part)):
            on_record(record)
            self._add(_left_by_earlier(record))
        for attachment in self.all():
            if not later or not attachment.pod.is_listed:
                self._machine.feed(attachment, Event.TAKE_UP)
        return errors

    def take_up(self) -> None:
        """Start the recovery that `recover` postponed because of its parameter `later`. Call it once."""
        for attachment in self.all():
            self._machine.feed(attachment, Event.TAKE_UP)

    # -- while it is attached ----------------------------------------------------------------------------------------

    def cover(self, attachment: Attachment, name: str, container: str, *, is_covered: bool = True) -> Future[None]:
        """Record that a container of the sandbox has `name` (a CDI device, or a share of a pool), and so gets what is
        attached for it. With `is_covered=False`, record that the container does not have it. The future is done when
        the journal has the change. It raises NotReadyError if the attachment ends, AttachError if the journal cannot be
        written."""
        return self._workers.submit(
            attachment.pod.sandbox_id, lambda: self._tasks.cover(attachment, name, container, is_covered)
        )

    def look_again(self, attachment: Attachment, *, gids: bool = True) -> Future[None]:
        """Reread the names and character devices of an attachment in a worker and, with `gids`, its GID tables, which
        may be long. The future raises AttachError if a device is gone."""
        with self._lock:
            if gids:
                attachment.change(gids_are_old=True)
            looked = self._workers.submit(attachment.pod.sandbox_id, lambda: self._tasks.look_again(attachment))
            attachment.change(looked_again=looked)
            return looked

    # -- ending ------------------------------------------------------------------------------------------------------

    def bring_home(self, sandbox_id: str, *, restored: bool) -> Future[None] | None:
        """Undo all attachments of the sandbox; return None if it has none. The future is done when their devices are on
        the host or, with `restored`, when their configuration is restored, too. A failed undo is retried, and the
        future waits for it."""
        parts = self._end_parts(sandbox_id)
        return joined([it.home if restored else it.returned for it in parts]) if parts else None

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Undo all attachments of the sandbox. The returned future is done when other pods can get the devices. Return
        None if the sandbox has no attachment."""
        parts = self._end_parts(sandbox_id)
        return joined([it.undo_done for it in parts]) if parts else None

    def being_released(self) -> tuple[Future[None], ...]:
        """Return the futures of the undos in progress whose devices are already on the host. Each future is done when
        other pods can get the devices."""
        return tuple(it.undo_done for it in self.all() if it.returned.done() and it.now.state in _UNDER_WAY)

    def end_older(self, pod: Pod) -> tuple[Future[None], ...]:
        """End all other sandboxes of the pod, since a pod has one sandbox at a time. Return one future per ended
        attachment, which is done when its devices are free."""
        older = [it for it in self.all() if it.pod.is_same_pod(pod) and it.pod.sandbox_id != pod.sandbox_id]
        for attachment in older:
            self._machine.end(attachment)
        return tuple(it.undo_done for it in older)

    def _end_parts(self, sandbox_id: str) -> Holdings:
        parts = self.of(sandbox_id)
        for attachment in parts:
            self._machine.end(attachment)
        return parts

    def close(self, busy: Collection[str] = ()) -> None:
        """Cancel all pauses and close all held namespaces; attached devices stay attached. Call it after Workers.close
        with `busy`, the sandboxes whose tasks still run. Their namespaces stay open for these tasks."""
        self._machine.close()
        self._tasks.close()
        for attachment in self.all():
            if attachment.pod.sandbox_id not in busy:
                self._tasks.let_go(attachment)


def joined(futures: Collection[Future[None]]) -> Future[None]:
    """Return a future that is done when all of `futures` are done. With several futures, their errors are ignored."""
    if len(futures) == 1:
        return next(iter(futures))
    done: Future[None] = Future()
    left = len(futures)
    lock = threading.Lock()

    def one_more(_future: Future[None]) -> None:
        nonlocal left
        with lock:
            left -= 1
            is_last = left == 0
        if is_last:
            done.set_result(None)

    for future in futures:
        future.add_done_callback(one_more)
    return done


def _left_by_earlier(record: SandboxRecord) -> Attachment:
    """Return the attachment for a journal record that an earlier daemon wrote."""
    chosen = Selection(placed=placed_of(record), rdma_cm=record.rdma_cm)
    return Attachment(record.pod, record, attempts=1 + ATTEMPTS, select=lambda: chosen, state=State.LEFT)
