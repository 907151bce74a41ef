"""The state machine of all attachments: events go in, the effects of TABLE (nri_rdma.attach.states) are carried out.

Who carries out which effect: `attempts` from the plan to an attach that containers may have, `recovery` for what an
earlier daemon left, `undo` from the end to the release. One timer each, because an attachment waits for one thing at a
time. The state is the attachment's own, and so is the lock under which it changes; effects are carried out without one.
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
    """Feeds events to attachments. Safe for use by several threads."""

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
        """`look_again` queues a reading of names and numbers. `on_gone` is called when everything of an attachment is
        restored, and again after a pause when it raises; `forget` after it, once."""
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
        """Feed an event, and carry out its effects in this thread; none when the table has no row for it.

        `error` is what the effects tell to those who wait.
        """
        for effect in attachment.step(event, change) or ():
            self._handlers[effect](attachment, error)

    def carry_out(self, effect: Effect, attachment: Attachment) -> None:
        """Carry out the first effect of an attachment that was made just now: no event leads to it."""
        self._handlers[effect](attachment, None)

    def end(self, attachment: Attachment) -> None:
        """End the attachment. The spans of its undo belong to the caller's span."""
        by = current_span()
        self.feed(attachment, Event.END, change=lambda now: now._replace(ended_by=by))

    def close(self) -> None:
        """Cancel all pauses: no attempt and no retry follows."""
        self._timers.close()
