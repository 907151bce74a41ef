"""The registration of a resource or a driver with the kubelet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The state of a registration with the kubelet. `error` says why it failed, "" if it succeeded. `since` is when it
    last changed between failure and success, in seconds since the epoch."""

    error: str
    since: float

    def then(self, error: str, now: float) -> Registration:
        """Return the registration after another attempt at the time `now`; `error` is "" if it succeeded. `since`
        changes only if the attempt succeeds after a failure, or fails after a success."""
        return Registration(error=error, since=self.since if bool(self.error) == bool(error) else now)
