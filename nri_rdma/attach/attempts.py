"""The attempts of an attachment: plan, note the plan, attach. After a failure: roll back, pause, rescan, retry."""

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
"""Before the second attempt, and before the third."""

ANSWER_FIRST_S = 0.0005
"""Pause between a plan and its attach, in which the runtime gets its answer and the thread that reads its calls goes
on; without it they wanted the interpreter and a processor at once, and waited milliseconds for them."""


class Attempts:
    """Carries out the effects that lead to an attach, and to the next attempt after one that failed."""

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
        """Queue the plan: with the attaches where somebody waits for the attach itself, since it follows at once."""
        pool = self._workers if attachment.is_awaited else self._planners
        task = pool.submit(attachment.pod.sandbox_id, lambda: self._picked(attachment, Event.PLAN_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(attachment, done))

    def _queue_attach(self, attachment: Attachment, _error: BaseException | None) -> None:
        if attachment.is_awaited:  # its plan was made by a worker: this thread is one
            self._feed(attachment, Event.ATTACH_PICKED)
            return
        task = self._workers.submit(attachment.pod.sandbox_id, lambda: self._picked(attachment, Event.ATTACH_PICKED))
        task.add_done_callback(lambda done: _settle_cancelled(attachment, done))

    def _picked(self, attachment: Attachment, event: Event) -> None:
        with under(attachment.parent):
            self._feed(attachment, event)

    def _plan(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Select devices and plan their steps."""
        again = attachment.again
        select = again.choose if again is not None and attachment.attempt > 1 else attachment.select
        assert select is not None  # only what an earlier daemon left has none, and it is given one
        try:
            chosen = select()
            attachment.change(cdi_devices=cdi_devices_of(chosen.placed))
            self._tasks.plan(attachment, chosen)
        except BaseException as error:  # noqa: BLE001 - whatever refused it, who waits is told
            self._failed(attachment, error)
        else:
            attachment.remember(chosen)
            self._feed(attachment, Event.MADE)

    def _tell_planned(self, attachment: Attachment, _error: BaseException | None) -> None:
        attachment.settle_plan()

    def _note(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Write the plan down, in a planner, if the runtime was answered with it: where somebody waits for the attach
        itself, a daemon that starts anew has nothing to keep."""
        if not attachment.is_awaited:
            time.sleep(ANSWER_FIRST_S)
            self._tasks.note_plan(attachment)
        self._feed(attachment, Event.NOTED)

    def _attach(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Carry out the plan, in a worker."""
        try:
            self._tasks.attach(attachment)
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, the host comes first
            facts = {"pod": str(attachment.pod), "error": str(error), "attempt": attachment.attempt}
            log.warning("attach failed", extra=facts)
            self._failed(attachment, error)
        else:
            attached = attachment.record
            assert attached is not None  # it is attached
            self._feed(attachment, Event.CONFIRMED)
            # Afterwards, since containers wait: the log, and `rest`, which closes sockets.
            log.info("attached", extra={"pod": str(attachment.pod), "devices": attached.device_names})
            self._tasks.rest(attachment)

    def _tell_attached(self, attachment: Attachment, _error: BaseException | None) -> None:
        attachment.settle()

    def _tell_error(self, attachment: Attachment, error: BaseException | None) -> None:
        attachment.settle(error or interrupted(attachment.pod))

    def _failed(self, attachment: Attachment, error: BaseException) -> None:
        """Feed the table a failed attempt. If somebody still waits for the first one's refusal, it is the last."""
        is_last = self._timers.is_closed or attachment.attempt >= attachment.attempts or not attachment.planned.done()
        event = Event.LAST_FAILED if is_last else Event.FAILED
        self._feed(
            attachment,
            event,
            error,
            lambda now: now._replace(last_error=str(error), is_given_up=is_last and not attachment.ends),
        )

    def _roll_back(self, attachment: Attachment, error: BaseException | None) -> None:
        """Undo what an attempt did."""
        try:
            self._tasks.bring_home(attachment)
        except Exception:  # noqa: BLE001 - it is undone for good now, which tells what it meets
            self._feed(
                attachment,
                Event.UNDO_FAILED,
                error,
                lambda now: now._replace(is_given_up=now.state is State.ROLLING_BACK),
            )
        else:
            self._feed(attachment, Event.UNDONE, error)

    def _pause(self, attachment: Attachment, _error: BaseException | None) -> None:
        attempt = attachment.attempt
        pause_s = ATTEMPT_PAUSES_S[min(attempt, len(ATTEMPT_PAUSES_S)) - 1]
        attachment.change(record=None, attempt=attempt + 1)
        log.info("trying again", extra={"pod": str(attachment.pod), "attempt": attempt + 1, "pause_s": pause_s})
        if attachment.ends:
            return  # it ended since its attempt failed: no other one follows
        self._timers.start(attachment, pause_s, partial(self._feed, attachment, Event.DUE))

    def _read_node(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Rescan the node without blocking a planner."""
        if attachment.again is None:
            self._feed(attachment, Event.READ)
        else:
            attachment.again.read().add_done_callback(lambda _done: self._feed(attachment, Event.READ))


def _settle_cancelled(attachment: Attachment, done: Future[None]) -> None:
    """Refuse an attachment whose task was cancelled: the workers have ended, and no other one comes to it."""
    if done.cancelled():
        attachment.settle(interrupted(attachment.pod))
