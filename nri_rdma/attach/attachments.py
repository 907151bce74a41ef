"""The attachments of the node: which sandbox has which, how they begin and how they end.

What happens to one in between is in the table of nri_rdma.attach.states, whose effects nri_rdma.attach.state_machine
carries out. Everything is keyed by sandbox id: two sandboxes of one pod UID may exist at once.
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
"""How often an attach is tried whose sandbox has started already: nobody else can try it again."""


_UNDER_WAY: Final = frozenset({State.RETURNING, State.HOME})
"""The states of a return that nothing holds up: one that failed waits for its next attempt."""


class Attachments:
    """All attachments of the node. Public methods may be called by any thread and never block on the kernel."""

    def __init__(
        self,
        tasks: Tasks,
        workers: Workers,
        *,
        on_gone: Callable[[str], None],
        planners: Workers | None = None,
        schedule: Schedule = start_timer,
    ) -> None:
        """`on_gone` is called when everything of an attachment is restored, and again after a pause when it raises.
        `planners` plan, so that no plan waits for attaches; by default the workers do."""
        self._tasks = tasks
        self.lost = tasks.lost
        """Returns the netdevs that pods have lost since the start."""
        self._workers = workers
        self.on_begun: list[Callable[[Attachment], None]] = []
        """Called with each attachment that begins, or that an earlier daemon left; a listener must not block."""
        self._lock = threading.Lock()
        self._attachments: dict[str, dict[str, Attachment]] = {}
        """By sandbox id, then by part; never an empty one."""
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
        """Return the attachment made at the sandbox's start, if it has one."""
        return self._attachments.get(sandbox_id, {}).get("")

    def of(self, sandbox_id: str) -> Holdings:
        """Return all attachments of the sandbox of that id."""
        parts = self._attachments.get(sandbox_id)
        return Holdings(tuple(parts.values())) if parts is not None else NOTHING  # one step of the interpreter: no lock

    def all(self) -> tuple[Attachment, ...]:
        """Return all attachments of all sandboxes, oldest first."""
        with self._lock:
            return tuple(attachment for parts in self._attachments.values() for attachment in parts.values())

    def held(self) -> int:
        """Return how many namespaces are held open: the kernel returns no device of theirs by itself meanwhile."""
        return sum(1 for attachment in self.all() if attachment.namespace is not None)

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace exists. Blocks on the kernel: for a worker."""
        return self._tasks.is_there(pod)

    def watch_end(self, pod: Pod) -> None:
        """Have the end of the pod's namespace watched, although nothing may be attached to the pod."""
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
        """Have `placed` planned and attached: `planned` of the result tells the refusal, `attach_done` the end.

        An attach that fails after its plan was told is tried `attempts` times in all, with what `again` finds.
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
        """Do the same once these undos have restored their devices; only then `choose` is called, in a planner."""
        attachment = Attachment(pod, attempts=attempts, select=choose, again=again, state=State.WAITING)
        self._add(attachment)
        joined(older).add_done_callback(lambda _done: self._machine.feed(attachment, Event.OLDER_HOME))
        return attachment

    def recover(self, on_record: Callable[[SandboxRecord], None], *, later: bool = False) -> tuple[NriRdmaError, ...]:
        """Recover what an earlier daemon left: adopt what is attached, restart what was half attached, undo what is
        gone or was half restored. Workers do that, now or, with `later`, at `take_up`; until then containers of these
        sandboxes wait. Of a pod that no runtime lists nothing more will be heard, so that one is always taken up now.

        Called once, before any door opens; `on_record` gets every record before anything is done with it. Return an
        error for every journal file that had to be set aside.
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
        """Have workers handle what `recover` found; once."""
        for attachment in self.all():
            self._machine.feed(attachment, Event.TAKE_UP)

    # -- while it is attached ----------------------------------------------------------------------------------------

    def cover(self, attachment: Attachment, name: str, container: str, *, is_covered: bool = True) -> Future[None]:
        """Have a container of the sandbox covered by what is attached for a CDI device or a share, because that
        container has it too, or not covered any more, because it does not."""
        return self._workers.submit(
            attachment.pod.sandbox_id, lambda: self._tasks.cover(attachment, name, container, is_covered)
        )

    def look_again(self, attachment: Attachment, *, gids: bool = True) -> Future[None]:
        """Have the names and character devices of an attachment reread, and its GIDs, whose tables are long; the future
        raises AttachError when a device is gone."""
        with self._lock:
            if gids:
                attachment.change(gids_are_old=True)
            looked = self._workers.submit(attachment.pod.sandbox_id, lambda: self._tasks.look_again(attachment))
            attachment.change(looked_again=looked)
            return looked

    # -- ending ------------------------------------------------------------------------------------------------------

    def bring_home(self, sandbox_id: str, *, restored: bool) -> Future[None] | None:
        """Undo everything of a sandbox. Return what is done when its devices are on the host, and with `restored` when
        the host is as before, however often the undo has to be retried; its devices are free for others a little later.
        None: it holds nothing."""
        parts = self._end_parts(sandbox_id)
        return joined([it.home if restored else it.returned for it in parts]) if parts else None

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Undo everything of a sandbox. Return what is done when its devices are free for others. None: it holds
        nothing."""
        parts = self._end_parts(sandbox_id)
        return joined([it.undo_done for it in parts]) if parts else None

    def being_released(self) -> tuple[Future[None], ...]:
        """Return the releases that are under way of devices which are on the host."""
        return tuple(it.undo_done for it in self.all() if it.returned.done() and it.now.state in _UNDER_WAY)

    def end_older(self, pod: Pod) -> tuple[Future[None], ...]:
        """End the older sandboxes of the pod's UID, since a pod has one sandbox at a time. Return the undos, done or
        not."""
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
        """Cancel what is due and let all namespaces go; what is attached stays attached. After Workers.close, with the
        sandboxes that are still being worked on: theirs stay open, for who works with them."""
        self._machine.close()
        self._tasks.close()
        for attachment in self.all():
            if attachment.pod.sandbox_id not in busy:
                self._tasks.let_go(attachment)


def joined(futures: Collection[Future[None]]) -> Future[None]:
    """Return a future that is done when all of these are."""
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
    """Return the attachment of a record that an earlier daemon wrote."""
    chosen = Selection(placed=placed_of(record), rdma_cm=record.rdma_cm)
    return Attachment(record.pod, record, attempts=1 + ATTEMPTS, select=lambda: chosen, state=State.LEFT)
