"""The containers that were seen with RDMA devices from others, for `status`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

_KEPT_PODS = 4096
"""More than any node runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A container with RDMA devices from others: `what` is the CDI device, or "device nodes"."""

    pod: str
    container: str
    what: str
    devices: tuple[str, ...]
    source: str
    adopt: str
    is_privileged: bool


class Sightings:
    """By sandbox, oldest first. Safe for use by several threads."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, tuple[Sighting, ...]]] = OrderedDict()

    def put(self, sandbox_id: str, container: str, seen: tuple[Sighting, ...]) -> None:
        """What the container has now; () is nothing."""
        if seen:
            self._seen.setdefault(sandbox_id, {})[container] = seen
            while len(self._seen) > _KEPT_PODS:
                self._seen.popitem(last=False)

    def forget(self, sandbox_id: str) -> None:
        """The sandbox has ended."""
        self._seen.pop(sandbox_id, None)

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget all other sandboxes: they have ended unseen."""
        for sandbox_id in self._seen.copy():
            if sandbox_id not in sandbox_ids:
                self.forget(sandbox_id)

    def all(self) -> tuple[Sighting, ...]:
        """Those of all sandboxes."""
        return tuple(
            sighting for seen in self._seen.copy().values() for each in seen.copy().values() for sighting in each
        )
