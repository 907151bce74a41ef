"""The state machine of all attachments: it takes events, and carries out the actions (Effect) that TABLE in
nri_rdma.attach.states gives for them.

`attempts` carries out the actions from the plan to the attach, `recovery` those for an earlier daemon's attachments,
and `undo` those from the end to the release. An attachment has at most one timer. The attachment holds its state and a
lock for changing it; actions run without that lock.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from nri_rdma.attach.attachment import Attachment, Now, unchanged
from nri_rdma.attach.attempts import Attempts
from nri_rdma.attach.effects import Handlers
from nri_rdma.attach.recovery import Recovery
from nri_rdma.attach.states import Effect, Event
from nri_rdma.attach.tasks import Tasks
from nri_rdma.attach.timers import Schedule, Timers
from nri_rdma.attach.undo import Undo
from nri_rdma.observe.spans import current_span
from nri_rdma.tasks.workers import Workers


class StateMachine:
    """Feeds events to attachments and carries out the actions that follow. Safe for use by several threads."""

    def __init__(
        self,
        tasks: Tasks,
        workers: Workers,
        planners: Workers,
        schedule: Schedule,
        *,
        look_again: Callable[[Attachment], Future[None]],
        on_gone: Callable[[str], None],
        forget: Callable[[Attachment], None],
    ) -> None:
        """`look_again` queues a reread of an attachment's device names and numbers. `on_gone` is called with the key of
        an attachment whose devices are restored; if it raises, it is called again after a pause. `forget` is called
        once, after `on_gone` succeeded."""
        self._timers = Timers(schedule)
        self._handlers: Handlers = {
            **Attempts(tasks, workers, planners, self._timers, self.feed).handlers,
            **Recovery(tasks, workers, self._timers, self.feed, look_again).handlers,
            **Undo(tasks, workers, self._timers, self.feed, on_gone=on_gone, forget=forget).handlers,
        }

    def feed(
        self,
        attachment: Attachment,
        event: Event,
        error: BaseException | None = None,
        change: Callable[[Now], Now] = unchanged,
    ) -> None:
        """Feed an event to the attachment, and carry out the actions that TABLE gives for it, in this thread. If TABLE
        has no row for the event, nothing happens.

        `error` is passed on to those who wait for the attachment.
        """
        for effect in attachment.step(event, change) or ():
            self._handlers[effect](attachment, error)

    def carry_out(self, effect: Effect, attachment: Attachment) -> None:
        """Carry out an action (Effect) without an event: the first action of a new attachment."""
        self._handlers[effect](attachment, None)

    def end(self, attachment: Attachment) -> None:
        """End the attachment. The trace spans of its undo become children of the caller's span."""
        by = current_span()
        self.feed(attachment, Event.END, change=lambda now: now._replace(ended_by=by))

    def close(self) -> None:
        """Cancel all pauses, so that neither attempts nor undos are retried."""
        self._timers.close()
