"""Timers for retries: an attachment pauses before a failed attach, undo or check is tried again. An attachment has at
most one timer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from nri_rdma.attach.attachment import Attachment
from nri_rdma.tasks.clock import Clock

Schedule = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls a function after a number of seconds. Returns a function that cancels the call."""


def start_timer(pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
    """Call `work` after a pause in the process's one clock thread: the Schedule that is used outside tests. `work` must
    be short."""
    return _clock().schedule(pause_s, work)


@functools.cache
def _clock() -> Clock:
    return Clock()


class Timers:
    """The running timers by attachment, each of which ends the pause before a retry. Safe for use by several
    threads."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._cancels: dict[Attachment, Callable[[], None]] = {}
        self.is_closed = False
        """Whether all timers are cancelled and no timer can start."""

    def start(self, attachment: Attachment, pause_s: float, work: Callable[[], None]) -> None:
        """Call `work` after `pause_s` seconds, unless the timer is cancelled or all timers are closed before."""

        def due() -> None:
            with self._lock:
                self._cancels.pop(attachment, None)
            work()

        with self._lock:
            if not self.is_closed:
                self._cancels[attachment] = self._schedule(pause_s, due)

    def cancel(self, attachment: Attachment) -> None:
        """Cancel the timer of an attachment, if there is one. If the timer is just ending, its function may still be
        called."""
        with self._lock:
            cancel = self._cancels.pop(attachment, None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """Cancel all timers, and start no further one."""
        with self._lock:
            self.is_closed = True
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()
