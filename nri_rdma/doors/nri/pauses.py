"""The pauses between attempts to connect to the runtime. Pure.

Law: a runtime that ended will usually be back soon, so the next attempt comes soon. A runtime that refuses us is tried
less and less often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ABSENT_S = 0.05
"""Pause while no runtime listens on the socket. It is short, because pods may start without us as soon as the runtime
is back."""
FIRST_S, FIRST_REFUSED_S, LONGEST_S = 0.05, 0.5, 30.0
"""Pauses in seconds: the first after a session that ended early although it was synchronized, the first after a session
that never was synchronized, and the longest."""
GOOD_S = 5.0
"""A synchronized session that lasted at least this long does not count as a failure (docs/adr/0007)."""


@dataclass(slots=True)
class Pauses:
    """The pauses between sessions with one runtime. For a new runtime a new Pauses is made."""

    failures: int = 0

    def after(self, *, synchronized: bool, lasted_s: float) -> float:
        """Return the pause in seconds after a session. The pause is shortest after a synchronized session that lasted
        GOOD_S seconds; otherwise it doubles with each session.

        `synchronized`: the runtime listed its pods in that session. Otherwise the first pause is longer, because the
        runtime refuses or ignores us.
        """
        if synchronized and lasted_s >= GOOD_S:
            self.failures = 0
            return FIRST_S
        self.failures += 1
        first = FIRST_S if synchronized else FIRST_REFUSED_S
        doublings = min(self.failures - 1, 16)  # more doublings would exceed LONGEST_S anyway
        return min(first * (1 << doublings), LONGEST_S)


def pieces(pause_s: float, piece_s: float = ABSENT_S) -> Iterator[float]:
    """Yield the pause in pieces of at most `piece_s` seconds, so that the caller can check for changes in between."""
    while pause_s > 0:
        yield min(piece_s, pause_s)
        pause_s -= piece_s
