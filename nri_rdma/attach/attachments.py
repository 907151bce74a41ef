"""The attachments of the node: their threads, their timers, their end.

What happens to one is in the table of nri_rdma.attach.states; here its effects are carried out. Everything is keyed by
sandbox id: two sandboxes of one pod UID may exist at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Protocol

from nri_rdma.attach.attachment import Again, Attachment, Choose, Chosen, Now, cdi_devices_of, interrupted, unchanged
from nri_rdma.attach.liveness import lives_by_process
from nri_rdma.attach.port import KernelError, ProcessIdentity
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.attach.states import Effect, Event, State
from nri_rdma.attach.survey import placed_of
from nri_rdma.attach.timers import Schedule, Timers, start_timer
from nri_rdma.decide.placement import Placed
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import current_span, under
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses before an undo that failed is tried again. After the last one (30 s in all) a namespace in which physical
devices are stuck is let go, so that the kernel brings them home when it dies."""

ATTEMPTS = 3
"""How often an attach is tried whose sandbox has started already: nobody else can try it again."""
TAKE_UP_PAUSE_S = 1.0
"""Pause before a failed check of an earlier daemon's attachment is retried."""
ATTEMPT_PAUSES_S = (0.5, 1.0)
"""Before the second attempt, and before the third."""


ANSWER_FIRST_S = 0.0005
"""Pause between a plan and its attach so that the reply to the runtime goes out first; without it both wanted the
interpreter and a processor, and waited milliseconds for them."""


class Tasks(Protocol):
    """What is done for an attachment, by one thread at a time: nri_rdma.attach.work does it on a host, a dry run
    (nri_rdma.commands.dryrun.tasks) only finds out. All of them may block. What they raise is the table's news."""

    def recorded(self) -> tuple[tuple[SandboxRecord, ...], tuple[NriRdmaError, ...]]:
        """Return what an earlier daemon left that may still matter, and an error for each record set aside."""

    def plan(self, sandbox: Attachment, chosen: Chosen) -> None:
        """Decide the steps, and open the namespace. Raises what refuses the attachment."""

    def note_plan(self, sandbox: Attachment) -> None:
        """Write down who gets what. Never raises."""

    def attach(self, sandbox: Attachment) -> None:
        """Do what is planned, so that containers may have it. Raises AttachError, and NotReadyError when it ends."""

    def bring_home(self, sandbox: Attachment) -> None:
        """Undo the attach. Raise when anything is not as before."""

    def leave_to_kernel(self, sandbox: Attachment) -> None:
        """After many failed undos: close the namespace if the kernel brings home what is in it."""

    def find(self, sandbox: Attachment) -> Event:
        """Return what became of what an earlier daemon left: THERE, HALF or ABSENT. Raises KernelError when that cannot
        be seen."""

    def look_again(self, sandbox: Attachment) -> None:
        """Read names and numbers again. Raise AttachError when a device is gone."""

    def cover(self, sandbox: Attachment, cdi_device: str, container: str) -> None:
        """Give one more container what was attached for a CDI device."""

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace can be opened. Raises KernelError when that cannot be seen."""

    def let_go(self, sandbox: Attachment) -> None:
        """Close the namespace, if it is held."""

    def close(self) -> None:
        """Start no further work on its own."""


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
        self._workers = workers
        self._planners = planners or workers
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._sandboxes: dict[str, dict[str, Attachment]] = {}
        """By sandbox id, then by part; never an empty one."""
        self._timers = Timers(schedule)
        self._effects: dict[Effect, Callable[[Attachment, BaseException | None], None]] = {
            Effect.QUEUE_PLAN: self._queue_plan,
            Effect.PLAN: self._plan,
            Effect.TELL_PLANNED: self._tell_planned,
            Effect.NOTE: self._note,
            Effect.QUEUE_ATTACH: self._queue_attach,
            Effect.ATTACH: self._attach,
            Effect.TELL_ATTACHED: self._tell_attached,
            Effect.ROLL_BACK: self._roll_back,
            Effect.PAUSE: self._pause,
            Effect.READ_NODE: self._read_node,
            Effect.QUEUE_SEEK: self._queue_seek,
            Effect.SEEK: self._seek,
            Effect.PAUSE_SEEK: self._pause_seek,
            Effect.QUEUE_UNDO: self._queue_undo,
            Effect.UNDO: self._undo,
            Effect.PAUSE_UNDO: self._pause_undo,
            Effect.RELEASE: self._release,
            Effect.TELL_ERROR: self._tell_error,
            Effect.FORGET: self._forget,
        }

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the sandbox of that id has attachments."""
        return sandbox_id in self._sandboxes

    def get(self, sandbox_id: str) -> Attachment | None:
        """Return the attachment made at the sandbox's start, if it has one."""
        return self._sandboxes.get(sandbox_id, {}).get("")

    def of(self, sandbox_id: str) -> tuple[Attachment, ...]:
        """Return all attachments of the sandbox of that id, by part, oldest first."""
        parts = self._sandboxes.get(sandbox_id)
        return tuple(parts.values()) if parts is not None else ()  # one step of the interpreter: no lock

    def all(self) -> tuple[Attachment, ...]:
        """Return all attachments of all sandboxes, oldest first."""
        with self._lock:
            return self._all()

    def _all(self) -> tuple[Attachment, ...]:
        return tuple(sandbox for parts in self._sandboxes.values() for sandbox in parts.values())

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
        chosen = Chosen(placed=placed, rdma_cm=rdma_cm)
        sandbox = Attachment(pod, part=part, attempts=attempts, select=lambda: chosen, again=again)
        sandbox.change(cdi_devices=cdi_devices_of(placed))
        self._add(sandbox)
        self._queue_plan(sandbox, None)
        return sandbox

    def begin_after(
        self,
        older: Collection[Future[None]],
        pod: Pod,
        choose: Choose,
        attempts: int = 1,
        again: Again | None = None,
    ) -> Attachment:
        """Do the same once these undos have restored their devices; only then `choose` is called, in a planner."""
        sandbox = Attachment(pod, attempts=attempts, select=choose, again=again, state=State.WAITING)
        self._add(sandbox)
        joined(older).add_done_callback(lambda _done: self._feed(sandbox, Event.OLDER_HOME))
        return sandbox

    def _add(self, sandbox: Attachment) -> None:
        with self._lock:
            self._sandboxes.setdefault(sandbox.pod.sandbox_id, {})[sandbox.part] = sandbox

    def cover(self, sandbox: Attachment, cdi_device: str, container: str) -> Future[None]:
        """Have another container of the sandbox covered by what it attached for a CDI device, because that container
        has the CDI device too."""
        return self._workers.submit(sandbox.pod.sandbox_id, lambda: self._tasks.cover(sandbox, cdi_device, container))

    def end(self, sandbox_id: str) -> Future[None] | None:
        """Undo everything of a sandbox. Joinable: a second call gets the same future, which is done when the devices
        are restored, however often that has to be retried. None: it holds nothing."""
        undos = [self._end(sandbox) for sandbox in self.of(sandbox_id)]
        return joined(undos) if undos else None

    def end_older(self, pod: Pod) -> tuple[Future[None], ...]:
        """End the older sandboxes of the pod's UID, since a pod has one sandbox at a time. Return the undos, done or
        not."""
        older = {it.pod.sandbox_id for it in self.all() if it.pod.is_same_pod(pod)} - {pod.sandbox_id}
        undos = (self.end(sandbox_id) for sandbox_id in sorted(older))
        return tuple(undo for undo in undos if undo is not None)

    def _end(self, sandbox: Attachment) -> Future[None]:
        by = current_span()
        self._feed(sandbox, Event.END, change=lambda now: replace(now, ended_by=by))
        return sandbox.undo_done

    def end_of_process(self, process: ProcessIdentity) -> None:
        """End the sandboxes that lived as long as this process."""
        for sandbox in self.all():
            record = sandbox.record
            known = record.process if record is not None else None  # none yet: its attach is under way
            if lives_by_process(sandbox.pod) and sandbox.pod.pid == process.pid and known in {None, process}:
                log.info("the sandbox's process ended", extra={"pod": str(sandbox.pod), "pid": process.pid})
                self.end(sandbox.pod.sandbox_id)

    def recover(self, on_record: Callable[[SandboxRecord], None], *, later: bool = False) -> tuple[NriRdmaError, ...]:
        """Recover what an earlier daemon left: adopt what is attached, restart what was half attached, undo what is
        gone or was half restored. Workers do that, now or, with `later`, at `take_up`; until then containers of these
        sandboxes wait.

        Called once, before any door opens; `on_record` gets every record before anything is done with it. Return an
        error for every journal file that had to be set aside.
        """
        records, errors = self._tasks.recorded()
        for record in sorted(records, key=lambda it: (it.pod.sandbox_id, it.part)):
            on_record(record)
            self._add(self._left_by_earlier(record))
        if not later:
            self.take_up()
        return errors

    def take_up(self) -> None:
        """Have workers handle what `recover` found; once."""
        for sandbox in self.all():
            self._feed(sandbox, Event.TAKE_UP)

    def node_removed(self, number: tuple[int, int], sequence: int) -> None:
        """Handle a character device that the kernel removed. Attachments that have it reread their numbers: the device
        moved or its driver was reloaded, and its numbers may be another's now."""
        for sandbox in self.all():
            if sequence > sandbox.numbers_from and (number in _numbers(sandbox) or _is_being_read(sandbox)):
                log.info("character device is gone", extra={"pod": str(sandbox.pod), "number": list(number)})
                self.look_again(sandbox)

    def look_at_all_again(self) -> None:
        """Reread all attachments: events were lost or a device was renamed, so its owner is unknown."""
        for sandbox in self.all():
            self.look_again(sandbox)

    def look_again(self, sandbox: Attachment) -> Future[None]:
        """Have the names and character devices of an attached sandbox reread; the future raises AttachError when one is
        gone."""
        with self._lock:
            looked = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._tasks.look_again(sandbox))
            sandbox.change(looked_again=looked)
            return looked

    def is_there(self, pod: Pod) -> bool:
        """Return whether the pod's namespace exists. Blocks on the kernel: for a worker."""
        return self._tasks.is_there(pod)

    def held(self) -> int:
        """Return how many namespaces are held open: the kernel returns no device of theirs by itself meanwhile."""
        return sum(1 for sandbox in self.all() if sandbox.namespace is not None)

    def close(self, busy: Collection[str] = ()) -> None:
        """Cancel what is due and let all namespaces go; what is attached stays attached. After Workers.close, with the
        sandboxes that are still being worked on: theirs stay open, for who works with them."""
        self._timers.close()
        self._tasks.close()
        for sandbox in self.all():
            if sandbox.pod.sandbox_id not in busy:
                self._tasks.let_go(sandbox)

    # -- the effects of TABLE ----------------------------------------------------------------------------------------

    def _feed(
        self,
        sandbox: Attachment,
        event: Event,
        error: BaseException | None = None,
        change: Callable[[Now], Now] = unchanged,
    ) -> bool:
        """Feed an event, and carry out its effects in this thread. Return whether the table has a row for it.

        `error` is what the effects tell to those who wait.
        """
        effects = sandbox.step(event, change)
        for effect in effects or ():
            self._effects[effect](sandbox, error)
        return effects is not None

    def _queue_plan(self, sandbox: Attachment, _error: BaseException | None) -> None:
        task = self._planners.submit(sandbox.pod.sandbox_id, lambda: self._picked(sandbox, Event.PLAN_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(sandbox, done))

    def _queue_attach(self, sandbox: Attachment, _error: BaseException | None) -> None:
        task = self._workers.submit(sandbox.pod.sandbox_id, lambda: self._picked(sandbox, Event.ATTACH_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(sandbox, done))

    def _queue_seek(self, sandbox: Attachment, _error: BaseException | None) -> None:
        work = partial(self._picked, sandbox, Event.SEEK_PICKED)
        self._workers.submit(sandbox.pod.sandbox_id, work, urgent=sandbox.ends)

    def _queue_undo(self, sandbox: Attachment, _error: BaseException | None) -> None:
        self._timers.cancel(sandbox)

        def work() -> None:
            with under(sandbox.now.ended_by):
                self._feed(sandbox, Event.UNDO_PICKED)

        self._workers.submit(sandbox.pod.sandbox_id, work, urgent=True)

    def _picked(self, sandbox: Attachment, event: Event) -> None:
        with under(sandbox.parent):
            self._feed(sandbox, event)

    def _plan(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """In a planner."""
        select = sandbox.again.choose if sandbox.again is not None and sandbox.attempt > 1 else sandbox.select
        assert select is not None  # only what an earlier daemon left has none, and it is given one
        try:
            chosen = select()
            sandbox.change(cdi_devices=cdi_devices_of(chosen.placed))
            self._tasks.plan(sandbox, chosen)
        except BaseException as error:  # noqa: BLE001 - whatever refused it, who waits is told
            self._failed(sandbox, error)
        else:
            sandbox.remember(chosen)
            self._feed(sandbox, Event.MADE)

    def _tell_planned(self, sandbox: Attachment, _error: BaseException | None) -> None:
        sandbox.settle_plan()

    def _note(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """In a planner."""
        if sandbox.attempts > 1:
            time.sleep(ANSWER_FIRST_S)
        self._tasks.note_plan(sandbox)
        self._feed(sandbox, Event.NOTED)

    def _attach(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """In a worker."""
        try:
            self._tasks.attach(sandbox)
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, the host comes first
            facts = {"pod": str(sandbox.pod), "error": str(error), "attempt": sandbox.attempt}
            log.warning("attach failed", extra=facts)
            self._failed(sandbox, error)
        else:
            self._feed(sandbox, Event.CONFIRMED)

    def _tell_attached(self, sandbox: Attachment, _error: BaseException | None) -> None:
        sandbox.settle()

    def _failed(self, sandbox: Attachment, error: BaseException) -> None:
        """Feed the table a failed attempt. If somebody still waits for the first one's refusal, it is the last."""
        is_last = self._timers.is_closed or sandbox.attempt >= sandbox.attempts or not sandbox.planned.done()
        event = Event.LAST_FAILED if is_last else Event.FAILED
        self._feed(
            sandbox,
            event,
            error,
            lambda now: replace(now, last_error=str(error), is_given_up=is_last and not sandbox.ends),
        )

    def _roll_back(self, sandbox: Attachment, error: BaseException | None) -> None:
        """Undo what an attempt did."""
        try:
            self._tasks.bring_home(sandbox)
        except Exception:  # noqa: BLE001 - it is undone for good now, which tells what it meets
            self._feed(
                sandbox, Event.UNDO_FAILED, error, lambda now: replace(now, is_given_up=now.state is State.ROLLING_BACK)
            )
        else:
            self._feed(sandbox, Event.UNDONE, error)

    def _pause(self, sandbox: Attachment, _error: BaseException | None) -> None:
        attempt = sandbox.attempt
        pause_s = ATTEMPT_PAUSES_S[min(attempt, len(ATTEMPT_PAUSES_S)) - 1]
        sandbox.change(record=None, attempt=attempt + 1)
        log.info("trying again", extra={"pod": str(sandbox.pod), "attempt": attempt + 1, "pause_s": pause_s})
        self._later(sandbox, pause_s, Event.DUE)

    def _read_node(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """Rescan the node without blocking a planner."""
        if sandbox.again is None:
            self._feed(sandbox, Event.READ)
        else:
            sandbox.again.read().add_done_callback(lambda _done: self._feed(sandbox, Event.READ))

    def _tell_error(self, sandbox: Attachment, error: BaseException | None) -> None:
        sandbox.settle(error or interrupted(sandbox.pod))

    # What an earlier daemon left

    def _left_by_earlier(self, record: SandboxRecord) -> Attachment:
        chosen = Chosen(placed=placed_of(record), rdma_cm=record.rdma_cm)
        return Attachment(record.pod, record, attempts=1 + ATTEMPTS, select=lambda: chosen, state=State.LEFT)

    def _seek(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """Check, in a worker, what became of an earlier daemon's attachment."""
        try:
            found = self._tasks.find(sandbox)
        except Exception as failure:
            is_bug = not isinstance(failure, KernelError)
            facts = {"pod": str(sandbox.pod), "error": str(failure)}
            log.warning("not taken up yet", extra=facts, exc_info=failure if is_bug else None)
            if is_bug:  # who waits to compare pods must not wait for ever
                _tell_taken_up(sandbox, failure)
            words = str(failure)
            self._feed(sandbox, Event.UNSEEABLE, change=lambda now: replace(now, undo_error=_of_ending(now, words)))
            return
        refusal = interrupted(sandbox.pod)
        facts = {"pod": str(sandbox.pod), "sandbox": sandbox.pod.sandbox_id}
        if found is Event.THERE:
            # Nobody listened to the kernel meanwhile. In the queue before anybody can see it attached:
            self.look_again(sandbox)
            log.info("adopted", extra=facts)
        elif found is Event.HALF:
            sandbox.change(last_error=str(refusal))
            log.info("beginning anew", extra=facts)
        self._feed(sandbox, found, refusal)
        _tell_taken_up(sandbox, None)

    def _pause_seek(self, sandbox: Attachment, _error: BaseException | None) -> None:
        self._later(sandbox, TAKE_UP_PAUSE_S, Event.TAKE_UP)

    # Undo

    def _undo(self, sandbox: Attachment, error: BaseException | None) -> None:
        """In a worker, or in the thread whose attempt was the last."""
        try:
            self._tasks.bring_home(sandbox)
        except Exception as failure:  # noqa: BLE001 - hardware is at stake: whatever it was, it is tried again
            self._not_home(sandbox, Event.UNDO_FAILED, failure, error)
        else:
            self._feed(sandbox, Event.UNDONE, error)

    def _release(self, sandbox: Attachment, error: BaseException | None) -> None:
        try:
            self._on_gone(sandbox.key)
        except Exception as failure:  # noqa: BLE001 - as for the undo
            self._not_home(sandbox, Event.RELEASE_FAILED, failure, error)
        else:
            self._feed(sandbox, Event.RELEASED, error, lambda now: replace(now, undo_error=""))

    def _not_home(self, sandbox: Attachment, event: Event, failure: Exception, error: BaseException | None) -> None:
        words = failure.message if isinstance(failure, ExceptionGroup) else str(failure)
        log.error("undo failed, trying again", extra={"pod": str(sandbox.pod), "error": words})
        self._feed(sandbox, event, error, lambda now: replace(now, undo_error=words))

    def _pause_undo(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """Keep the devices held and retry the undo, for as long as the daemon lives, with growing pauses."""
        failures = sandbox.now.undo_failures
        if failures >= len(RETRY_SECONDS):
            self._tasks.leave_to_kernel(sandbox)
        sandbox.change(undo_failures=failures + 1)
        self._later(sandbox, RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)], Event.UNDO_DUE)

    def _forget(self, sandbox: Attachment, _error: BaseException | None) -> None:
        """Forget the attachment, and notify those who wait for its end."""
        with self._lock:
            parts = self._sandboxes.get(sandbox.pod.sandbox_id, {})
            if parts.get(sandbox.part) is sandbox:
                del parts[sandbox.part]
                if not parts:
                    del self._sandboxes[sandbox.pod.sandbox_id]
        sandbox.undo_done.set_result(None)
        if sandbox.record is not None:
            log.info("returned", extra={"pod": str(sandbox.pod), "devices": sandbox.record.device_names})

    # Timers: an attachment waits for one thing at a time

    def _later(self, sandbox: Attachment, pause_s: float, event: Event) -> None:
        """Feed the event after a pause, unless the daemon ends before."""
        if event is Event.DUE and sandbox.ends:
            return  # it ended since its attempt failed: no other one follows
        self._timers.start(sandbox, pause_s, partial(self._due, sandbox, event))

    def _due(self, sandbox: Attachment, event: Event) -> None:
        self._feed(sandbox, event)


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


def _of_ending(now: Now, words: str) -> str:
    """Return why what ends is not undone yet; "" for what does not end."""
    return words if now.ends else ""


def _tell_taken_up(sandbox: Attachment, error: BaseException | None) -> None:
    """Tell who waits that it is known what became of what an earlier daemon left, or that it cannot be told."""
    assert sandbox.taken_up is not None  # an earlier daemon left it
    if sandbox.taken_up.done():
        return
    if error is None:
        sandbox.taken_up.set_result(None)
    else:
        sandbox.taken_up.set_exception(error)


def _settle_cancelled(sandbox: Attachment, done: Future[None]) -> None:
    """The workers have ended: nobody will come to it."""
    if done.cancelled():
        sandbox.settle(interrupted(sandbox.pod))


def _is_being_read(sandbox: Attachment) -> bool:
    """Return whether its numbers are being reread now, so that nobody knows whether a number is one of them."""
    looked = sandbox.looked_again
    is_confirming = sandbox.state is Phase.ATTACHING and sandbox.numbers_from > 0
    return is_confirming or (looked is not None and not looked.done())


def _numbers(sandbox: Attachment) -> frozenset[tuple[int, int]]:
    """Return the numbers of the character devices that containers of an attached sandbox get."""
    record = sandbox.record
    if record is None or sandbox.state is not Phase.ATTACHED:
        return frozenset()
    nodes = [node for it in record.attached for item in it.devices for node in item.device.char_devices]
    return frozenset((node.major, node.minor) for node in nodes)
