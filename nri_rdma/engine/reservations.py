"""Who holds which device.

A holding begins when a device is placed and ends when its undo is done: a device that is being returned is neither
free nor owned by the next pod.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import MappingProxyType

from nri_rdma.decide.placement import Holding, Placed, Taken
from nri_rdma.model.device import DeviceId


class Allocations:
    """The holdings of all sandboxes of this node. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: dict[str, tuple[tuple[DeviceId, Holding], ...]] = {}

    def allocate(
        self, sandbox_id: str, owner: str, choose: Callable[[Taken], tuple[Placed, ...]]
    ) -> tuple[Placed, ...]:
        """Choose with what others have taken now and hold the result, as one step, instead of what the sandbox held.
        Whatever `choose` raises passes through, and leaves that."""
        with self._lock:
            placed = choose(self._taken(but=sandbox_id))
            self._holdings[sandbox_id] = tuple(
                (device.id, Holding(owner=owner, mode=item.admitted.mode, gpus=frozenset(item.admitted.request.gpus)))
                for item in placed
                for device in item.devices
            )
        return placed

    def hold(self, sandbox_id: str, devices: Iterable[tuple[DeviceId, Holding]]) -> None:
        """Hold devices that were placed before this daemon started."""
        with self._lock:
            self._holdings[sandbox_id] = tuple(devices)

    def release(self, sandbox_id: str) -> None:
        """The sandbox holds nothing any more."""
        with self._lock:
            self._holdings.pop(sandbox_id, None)

    def taken(self) -> Taken:
        """A snapshot of all holdings."""
        with self._lock:
            return self._taken()

    def _taken(self, but: str = "") -> Taken:
        taken: dict[DeviceId, set[Holding]] = {}
        for sandbox_id, holdings in self._holdings.items():
            for device_id, holding in holdings if sandbox_id != but else ():
                taken.setdefault(device_id, set()).add(holding)
        return MappingProxyType({device_id: frozenset(holders) for device_id, holders in taken.items()})
