"""One thread that calls functions at their time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)


class Clock:
    """Calls functions after a pause, in a thread of its own. The functions must be short, because they share that
    thread. Their exceptions are logged. Thread-safe.

    The thread begins with the clock, so `schedule` needs no new thread and does not fail when there can be none.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._due: list[tuple[float, int]] = []
        """A heap of the times of the calls, in seconds of `time.monotonic`, with the calls' numbers."""
        self._works: dict[int, Callable[[], None]] = {}
        """The functions that were neither called nor cancelled yet, by the number of the call."""
        threading.Thread(target=self._serve, name="clock", daemon=True).start()

    def schedule(self, pause_s: float, work: Callable[[], None]) -> Callable[[], None]:
        """Call `work` after `pause_s` seconds. Return a function that cancels the call; if the call has begun, it does
        nothing."""
        with self._changed:
            number = next(self._numbers)
            self._works[number] = work
            heapq.heappush(self._due, (time.monotonic() + pause_s, number))
            self._changed.notify()

        def cancel() -> None:
            self._works.pop(number, None)

        return cancel

    def _serve(self) -> None:
        while True:
            work = self._next()
            try:
                work()
            except Exception:  # an exception must not end the thread
                log.exception("a scheduled call failed")
            del work  # so that its objects are freed before the next call is due

    def _next(self) -> Callable[[], None]:
        """Wait for the next call that is due and was not cancelled, and return its function."""
        with self._changed:
            while True:
                pause_s = self._due[0][0] - time.monotonic() if self._due else None
                if pause_s is not None and pause_s <= 0.0:
                    work = self._works.pop(heapq.heappop(self._due)[1], None)
                    if work is not None:
                        return work
                else:
                    self._changed.wait(pause_s)
