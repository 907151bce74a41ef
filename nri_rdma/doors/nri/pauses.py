"""How long to wait before the runtime is asked again. Pure.

Law: who was there and has gone is back soon, so the next attempt comes soon; who refuses us is asked less and less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

ABSENT_S = 0.05
"""Between attempts to reach a socket that nobody serves: pods may start without us the moment it comes back."""
FIRST_S, FIRST_REFUSED_S, LONGEST_S = 0.05, 0.5, 30.0
"""After the first session that ended early, after the first that never began, and at most."""
GOOD_S = 5.0
"""A synchronized session that lasted this long is no failure (docs/adr/0007)."""


@dataclass(slots=True)
class Pauses:
    """The pauses between sessions with one runtime: a new runtime gets new ones."""

    failures: int = 0

    def after(self, *, synchronized: bool, lasted_s: float) -> float:
        """The pause in seconds after a session that got so far and lasted so long."""
        if synchronized and lasted_s >= GOOD_S:
            self.failures = 0
            return FIRST_S
        self.failures += 1
        first = FIRST_S if synchronized else FIRST_REFUSED_S
        doublings = min(self.failures - 1, 16)  # beyond LONGEST_S by then
        return min(first * (1 << doublings), LONGEST_S)


def pieces(pause_s: float, piece_s: float = ABSENT_S) -> Iterator[float]:
    """A pause cut up, so that somebody can look in between."""
    while pause_s > 0:
        yield min(piece_s, pause_s)
        pause_s -= piece_s
