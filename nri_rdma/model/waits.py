"""How long a runtime waits for an attach; every other pod of the node waits meanwhile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The limits of the waits. `blocking`: a sandbox is answered when its attach has ended, else after `sandbox_s`
    seconds. A container waits `barrier_s` seconds for an attach that still runs."""

    blocking: bool = False
    sandbox_s: float = 0.0
    barrier_s: float = 0.2
