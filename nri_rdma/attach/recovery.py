"""The recovery of attachments that an earlier daemon left: find out the state of each one, and continue from there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.attachment import Attachment, Now, interrupted
from nri_rdma.attach.effects import Feed, Handlers
from nri_rdma.attach.port import KernelError
from nri_rdma.attach.states import Effect, Event
from nri_rdma.attach.tasks import Tasks
from nri_rdma.attach.timers import Timers
from nri_rdma.observe.spans import under
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

TAKE_UP_PAUSE_S = 1.0
"""Pause in seconds before a failed check of an earlier daemon's attachment is retried."""


class Recovery:
    """Checks the attachments that an earlier daemon left, in workers, and retries after a pause a check that the kernel
    refused."""

    def __init__(
        self,
        tasks: Tasks,
        workers: Workers,
        timers: Timers,
        feed: Feed,
        look_again: Callable[[Attachment], Future[None]],
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._timers = timers
        self._feed = feed
        self._look_again = look_again
        self.handlers: Handlers = {
            Effect.QUEUE_SEEK: self._queue_seek,
            Effect.SEEK: self._seek,
            Effect.PAUSE_SEEK: self._pause_seek,
        }

    def _queue_seek(self, attachment: Attachment, _error: BaseException | None) -> None:
        self._workers.submit(attachment.pod.sandbox_id, partial(self._picked, attachment), urgent=attachment.ends)

    def _picked(self, attachment: Attachment) -> None:
        with under(attachment.parent):
            self._feed(attachment, Event.SEEK_PICKED)

    def _seek(self, attachment: Attachment, _error: BaseException | None) -> None:
        """Determine, in a worker, the state of an earlier daemon's attachment, and feed it as an event to the state
        machine."""
        try:
            found = self._tasks.find(attachment)
        except Exception as failure:
            is_bug = not isinstance(failure, KernelError)
            facts = {"pod": str(attachment.pod), "error": str(failure)}
            log.warning(
                "earlier attachment not checked, trying again", extra=facts, exc_info=failure if is_bug else None
            )
            if is_bug:  # otherwise the comparison of pods with the journal would wait for ever
                _tell_taken_up(attachment, failure)
            words = str(failure)
            self._feed(attachment, Event.UNSEEABLE, change=lambda now: now._replace(undo_error=_of_ending(now, words)))
            return
        refusal = interrupted(attachment.pod)
        facts = {"pod": str(attachment.pod), "sandbox": attachment.pod.sandbox_id}
        if found is Event.THERE:
            # Events were lost between the two daemons. Queue the reread before others can see the state "attached".
            self._look_again(attachment)
            log.info("adopted", extra=facts)
        elif found is Event.HALF:
            attachment.change(last_error=str(refusal))
            log.info("attaching again after an interrupted attach", extra=facts)
        self._feed(attachment, found, refusal)
        _tell_taken_up(attachment, None)

    def _pause_seek(self, attachment: Attachment, _error: BaseException | None) -> None:
        self._timers.start(attachment, TAKE_UP_PAUSE_S, partial(self._feed, attachment, Event.TAKE_UP))


def _of_ending(now: Now, words: str) -> str:
    """Return `words` if the attachment is ending, otherwise "". `words` say why the undo of the attachment is
    delayed."""
    return words if now.ends else ""


def _tell_taken_up(attachment: Attachment, error: BaseException | None) -> None:
    """Set the future `taken_up`, which wakes those who wait until an earlier daemon's attachment has been checked. If
    the check has failed, they get `error`."""
    assert attachment.taken_up is not None  # an earlier daemon left it
    if attachment.taken_up.done():
        return
    if error is None:
        attachment.taken_up.set_result(None)
    else:
        attachment.taken_up.set_exception(error)
