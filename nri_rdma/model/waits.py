"""Time limits for a runtime's calls that wait for an attach. The runtime starts no other pod of the node meanwhile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """The limits of how long a runtime's call waits for an attach. With `blocking`, a sandbox start is answered when
    its attach has ended, otherwise after `sandbox_s` seconds at most. A container creation waits at most `barrier_s`
    seconds for a running attach."""

    blocking: bool = False
    sandbox_s: float = 0.0
    barrier_s: float = 0.2
