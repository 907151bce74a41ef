"""When something that changes in bursts is to be looked at. Pure but for the clock, which is a parameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Burst:
    """Says when the next look is due. Changes are noted by one thread at a time; `due_at` may be asked by any thread.

    A burst is over when `quiet_s` pass without another change. One that does not end is waited for no longer than
    `longest_s`. Two looks begin at least `interval_s` apart. Times are in seconds of `clock`.
    """

    def __init__(
        self,
        *,
        quiet_s: float,
        longest_s: float = math.inf,
        interval_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._quiet_s, self._longest_s, self._interval_s, self._clock = quiet_s, longest_s, interval_s, clock
        self._first: float | None = None
        self._last = 0.0
        self._not_before = -math.inf

    def note(self) -> None:
        """Note that something has changed."""
        self._last = self._clock()
        self._first = self._last if self._first is None else self._first

    def forget(self) -> None:
        """Drop what was noted: the caller looks now, and sees what has changed so far."""
        self._first = None

    @property
    def due_at(self) -> float | None:
        """Return when to look; None: there is no need."""
        first = self._first  # once: another thread may forget it at any time
        if first is None:
            return None
        return max(min(self._last + self._quiet_s, first + self._longest_s), self._not_before)

    def take(self) -> bool:
        """Return whether it is time to look. A caller that gets True has to look."""
        due_at, now = self.due_at, self._clock()
        if due_at is None or now < due_at:
            return False
        self._first, self._not_before = None, now + self._interval_s
        return True
