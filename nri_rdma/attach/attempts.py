"""The attempts of an attachment: make the plan, record it, attach. After a failure: roll back, pause, rescan, retry."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.attachment import Attachment, cdi_devices_of, interrupted
from nri_rdma.attach.effects import Feed, Handlers
from nri_rdma.attach.states import Effect, Event, State
from nri_rdma.attach.tasks import Tasks
from nri_rdma.attach.timers import Timers
from nri_rdma.observe.spans import under
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

ATTEMPT_PAUSES_S = (0.5, 1.0)
"""Pauses in seconds before the second and the third attempt."""

ANSWER_FIRST_S = 0.0005
"""Pause in seconds between a plan and its attach. Meanwhile the daemon answers the runtime and reads its next call.
Without the pause the answer and the attach compete for the interpreter, and the answer is milliseconds late."""


class Attempts:
    """Carries out the actions (Effect) that plan and attach, and those that repeat an attach after a failed attempt."""

    def __init__(self, tasks: Tasks, workers: Workers, planners: Workers, timers: Timers, feed: Feed) -> None:
        self._tasks = tasks
        self._workers = workers
        self._planners = planners
        self._timers = timers
        self._feed = feed
        self.handlers: Handlers = {
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
            Effect.TELL_ERROR: self._tell_error,
        }

    def _queue_plan(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Queue the plan for the planner threads. If the caller waits for the whole attach, queue the plan for the
        worker threads instead, so that one thread plans and attaches."""
        pool = self._workers if attachment.is_awaited else self._planners
        task = pool.submit(attachment.pod.sandbox_id, lambda: self._picked(attachment, Event.PLAN_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(attachment, done))

    def _queue_attach(self, attachment: Attachment, _error: BaseException | None) -> None:
        if attachment.is_awaited:  # a worker made its plan, so this thread is a worker
            self._feed(attachment, Event.ATTACH_PICKED)
            return
        task = self._workers.submit(attachment.pod.sandbox_id, lambda: self._picked(attachment, Event.ATTACH_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(attachment, done))

    def _picked(self, attachment: Attachment, event: Event) -> None:
        with under(attachment.parent):
            self._feed(attachment, event)

    def _plan(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Select the devices and plan the steps of the attach, and feed the result to the state machine."""
        again = attachment.again
        select = again.choose if again is not None and attachment.now.attempt > 1 else attachment.select
        assert select is not None  # whoever makes an attachment gives it `select`, also for an earlier daemon's record
        try:
            chosen = select()
            attachment.change(cdi_devices=cdi_devices_of(chosen.placed))
            self._tasks.plan(attachment, chosen)
        except BaseException as error:  # noqa: BLE001 - the error, of any kind, goes to those who wait
            self._failed(attachment, error)
        else:
            attachment.remember(chosen)
            self._feed(attachment, Event.MADE)

    def _tell_planned(self, attachment: Attachment, _error: BaseException | None) -> None:
        attachment.settle_plan()

    def _note(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Write the plan to the journal if the runtime was already answered, because a restarted daemon must know the
        plan then. If the runtime still waits for the whole attach, write nothing."""
        if not attachment.is_awaited:
            time.sleep(ANSWER_FIRST_S)
            self._tasks.note_plan(attachment)
        self._feed(attachment, Event.NOTED)

    def _attach(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Carry out the plan in a worker thread, and feed the result to the state machine."""
        try:
            self._tasks.attach(attachment)
        except BaseException as error:  # noqa: BLE001 - after any error the host must be restored
            facts = {"pod": str(attachment.pod), "error": str(error), "attempt": attachment.now.attempt}
            log.warning("attach failed", extra=facts)
            self._failed(attachment, error)
        else:
            attached = attachment.now.record
            assert attached is not None  # it is attached
            self._feed(attachment, Event.CONFIRMED)
            # After the event, because containers wait for it: the log line, and `rest`, which closes sockets.
            log.info("attached", extra={"pod": str(attachment.pod), "devices": attached.device_names})
            self._tasks.rest(attachment)

    def _tell_attached(self, attachment: Attachment, _error: BaseException | None) -> None:
        attachment.settle()

    def _tell_error(self, attachment: Attachment, error: BaseException | None) -> None:
        attachment.settle(error or interrupted(attachment.pod))

    def _failed(self, attachment: Attachment, error: BaseException) -> None:
        """Feed the event FAILED or LAST_FAILED to the state machine after a failed attempt. It is the last attempt if
        the plan was refused while the pod's start waits for it, if `attempts` are used up, or if the daemon is
        closing."""
        is_started = attachment.planned.done() or attachment.waits_for_older
        is_last = self._timers.is_closed or attachment.now.attempt >= attachment.attempts or not is_started
        event = Event.LAST_FAILED if is_last else Event.FAILED
        self._feed(
            attachment,
            event,
            error,
            lambda now: now._replace(last_error=str(error), is_given_up=is_last and not attachment.ends),
        )

    def _roll_back(self, attachment: Attachment, error: BaseException | None) -> None:
        """Undo the steps of a failed attempt, and feed the result to the state machine."""
        try:
            self._tasks.bring_home(attachment)
        except Exception:  # noqa: BLE001 - the final undo follows, and reports the error if it fails as well
            self._feed(
                attachment,
                Event.UNDO_FAILED,
                error,
                lambda now: now._replace(is_given_up=now.state is State.ROLLING_BACK),
            )
        else:
            self._feed(attachment, Event.UNDONE, error)

    def _pause(self, attachment: Attachment, _error: BaseException | None) -> None:
        attempt = attachment.now.attempt
        pause_s = ATTEMPT_PAUSES_S[min(attempt, len(ATTEMPT_PAUSES_S)) - 1]
        attachment.change(record=None, attempt=attempt + 1)
        log.info("trying again", extra={"pod": str(attachment.pod), "attempt": attempt + 1, "pause_s": pause_s})
        if attachment.ends:
            return  # its sandbox ended after the attempt failed, so no attempt follows
        self._timers.start(attachment, pause_s, partial(self._feed, attachment, Event.DUE))

    def _read_node(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Start a rescan of the node, without blocking a planner thread."""
        if attachment.again is None:
            self._feed(attachment, Event.READ)
        else:
            attachment.again.read().add_done_callback(lambda _done: self._feed(attachment, Event.READ))


def _settle_cancelled(attachment: Attachment, done: Future[None]) -> None:
    """Refuse an attachment whose task was cancelled: the worker pool is closed, so no thread will work on it."""
    if done.cancelled():
        attachment.settle(interrupted(attachment.pod))
