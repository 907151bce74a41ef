"""When something is to be read anew that changes in bursts. Pure: the time is a parameter."""

from __future__ import annotations

QUIET_S = 0.05
"""A link that comes, or a bond that is made, is a handful of events; they are over when so much time passes without."""
LATEST_S = 0.45
"""A burst that does not end is not waited for any longer. It may be an attach of ours: 16 netdevs take 0.3 s, and to
read the node meanwhile competes with it for the kernel's lock of all links, and tells what is half done."""
INTERVAL_S = 0.5
"""Between the beginnings of two readings, at the least. With the two above and the reading itself, what is known is
never a second old."""


class Pace:
    """Says when the next reading is due. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._last = 0.0
        self._not_before = 0.0

    def note(self, now: float) -> None:
        """Something has changed."""
        self._first = now if self._first is None else self._first
        self._last = now

    def forget(self) -> None:
        """Somebody reads now, and sees what has changed so far."""
        self._first = None

    @property
    def due_at(self) -> float | None:
        """When to read; None: there is no need."""
        if self._first is None:
            return None
        return max(min(self._last + QUIET_S, self._first + LATEST_S), self._not_before)

    def take(self, now: float) -> bool:
        """Whether it is time to read; who is told so reads."""
        due_at = self.due_at
        if due_at is None or now < due_at:
            return False
        self._first, self._not_before = None, now + INTERVAL_S
        return True
