"""The pauses of attachments: an attachment has at most one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from nri_rdma.attach.attachment import Attachment

Schedule = Callable[[float, Callable[[], None]], Callable[[], None]]
"""Calls a function after a number of seconds; returns a function that cancels this."""


def start_timer(pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
    """Start a thread that waits and then calls `work`: the Schedule that is used outside tests."""
    timer = threading.Timer(pause_s, work)
    timer.daemon = True
    timer.start()
    return timer.cancel


class Timers:
    """The running pauses by attachment. Safe for use by several threads."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._lock = threading.Lock()
        self._cancels: dict[Attachment, Callable[[], None]] = {}
        self.is_closed = False
        """Whether all pauses are cancelled and none can begin."""

    def start(self, attachment: Attachment, pause_s: float, work: Callable[[], None]) -> None:
        """Call `work` after the pause, unless the pause is cancelled or the timers are closed before."""

        def due() -> None:
            with self._lock:
                self._cancels.pop(attachment, None)
            work()

        with self._lock:
            if not self.is_closed:
                self._cancels[attachment] = self._schedule(pause_s, due)

    def cancel(self, attachment: Attachment) -> None:
        """Cancel the pause of an attachment, if there is one. If the pause is just ending, its function may still be
        called."""
        with self._lock:
            cancel = self._cancels.pop(attachment, None)
        if cancel is not None:
            cancel()

    def close(self) -> None:
        """Cancel all pauses and begin no further one."""
        with self._lock:
            self.is_closed = True
            cancels = list(self._cancels.values())
        for cancel in cancels:
            cancel()
