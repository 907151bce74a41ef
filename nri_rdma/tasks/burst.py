"""Decides when to read something that changes in bursts. Pure except for the clock, which is a parameter."""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Burst:
    """Decides when the next reading of something that changes is due. One thread at a time notes changes; any thread
    may read `due_at`.

    A reading is due when no change was noted for `quiet_s`. Further changes delay it by at most `longest_s` after the
    first one. Two readings begin at least `interval_s` apart. Times are in seconds of `clock`.
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
        """Note that something has changed now."""
        self._last = self._clock()
        self._first = self._last if self._first is None else self._first

    def forget(self) -> None:
        """Drop the noted changes, because the caller is about to read and will see them all."""
        self._first = None

    @property
    def due_at(self) -> float | None:
        """The time of the next reading, in seconds of `clock`; None if no change is noted."""
        first = self._first  # read once, because another thread may set it to None at any time
        if first is None:
            return None
        return max(min(self._last + self._quiet_s, first + self._longest_s), self._not_before)

    def take(self) -> bool:
        """Return whether a reading is due now. If it is, the noted changes are dropped, and the caller must read."""
        due_at, now = self.due_at, self._clock()
        if due_at is None or now < due_at:
            return False
        self._first, self._not_before = None, now + self._interval_s
        return True
