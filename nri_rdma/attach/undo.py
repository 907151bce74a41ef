"""The undo of an attachment: restore its devices, release them, forget the attachment. A failed action is retried after
a pause."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.effects import Feed, Handlers
from nri_rdma.attach.states import Effect, Event
from nri_rdma.attach.tasks import Tasks
from nri_rdma.attach.timers import Timers
from nri_rdma.observe.spans import under
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Pauses in seconds before a failed undo is retried. After the last one (30 s in all) the namespace is closed if all
netdevs in it are physical, so that the kernel returns them when it destroys the namespace."""


class Undo:
    """Carries out the actions (Effect) from the end of an attachment until it is forgotten."""

    def __init__(
        self,
        tasks: Tasks,
        workers: Workers,
        timers: Timers,
        feed: Feed,
        *,
        on_gone: Callable[[str], None],
        forget: Callable[[Attachment], None],
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._timers = timers
        self._feed = feed
        self._on_gone = on_gone
        self._remove = forget
        self.handlers: Handlers = {
            Effect.QUEUE_UNDO: self._queue_undo,
            Effect.UNDO: self._undo,
            Effect.PAUSE_UNDO: self._pause_undo,
            Effect.TELL_HOME: self._tell_home,
            Effect.RELEASE: self._release,
            Effect.FORGET: self._forget,
        }

    def _queue_undo(self, attachment: Attachment, _error: BaseException | None) -> None:
        self._timers.cancel(attachment)

        def work() -> None:
            with under(attachment.now.ended_by):
                self._feed(attachment, Event.UNDO_PICKED)

        self._workers.submit(attachment.pod.sandbox_id, work, urgent=True)

    def _undo(self, attachment: Attachment, error: BaseException | None) -> None:
        """Return the devices to the host and restore them. A worker calls this, or the thread in which the last attempt
        failed. `error` is why the attach failed, if it did; it is passed on to those who wait for the attach."""
        try:
            self._tasks.bring_home(attachment)
        except Exception as failure:  # noqa: BLE001 - hardware is at stake, so any error leads to a retry
            self._not_home(attachment, Event.UNDO_FAILED, failure, error)
        else:
            self._feed(attachment, Event.UNDONE, error)

    def _tell_home(self, attachment: Attachment, _error: BaseException | None) -> None:
        attachment.settle_returned()  # has an effect only if nothing was attached: bring_home has called it otherwise
        attachment.home.set_result(None)

    def _release(self, attachment: Attachment, error: BaseException | None) -> None:
        try:
            self._on_gone(attachment.key)
        except Exception as failure:  # noqa: BLE001 - as in _undo, any error leads to a retry
            self._not_home(attachment, Event.RELEASE_FAILED, failure, error)
        else:
            self._feed(attachment, Event.RELEASED, error, lambda now: now._replace(undo_error=""))

    def _not_home(self, attachment: Attachment, event: Event, failure: Exception, error: BaseException | None) -> None:
        words = failure.message if isinstance(failure, ExceptionGroup) else str(failure)
        log.error("undo failed, trying again", extra={"pod": str(attachment.pod), "error": words})
        self._feed(attachment, event, error, lambda now: now._replace(undo_error=words))

    def _pause_undo(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Start the pause before the undo is retried; the devices stay reserved. Pauses grow, and the number of retries
        is not limited."""
        failures = attachment.now.undo_failures
        if failures >= len(RETRY_SECONDS):
            self._tasks.leave_to_kernel(attachment)
        attachment.change(undo_failures=failures + 1)
        pause_s = RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)]
        self._timers.start(attachment, pause_s, partial(self._feed, attachment, Event.UNDO_DUE))

    def _forget(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Forget the attachment, and set its future `undo_done`, which wakes those who wait for its end."""
        self._remove(attachment)
        attachment.undo_done.set_result(None)
        if attachment.now.record is not None:
            log.info("returned", extra={"pod": str(attachment.pod), "devices": attachment.now.record.device_names})
