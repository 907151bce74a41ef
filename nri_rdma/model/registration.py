"""Whether the kubelet knows something of ours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """The registration of a resource, or of a driver, with the kubelet: `error` is why it failed, "" where it did not;
    `since` is the time of the last change, in seconds since the epoch."""

    error: str
    since: float

    def then(self, error: str, now: float) -> Registration:
        """Return the registration as it is now: another reason does not make a failure younger."""
        return Registration(error=error, since=self.since if bool(self.error) == bool(error) else now)
