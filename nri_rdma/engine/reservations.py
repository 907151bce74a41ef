"""The reservations of devices: which sandbox holds which device.

A reservation begins when a device is selected for a sandbox, and ends when the return of the device to the host is
done. Until then the device is not free for other pods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import MappingProxyType

from nri_rdma.decide.decision import Decision, Question, decide
from nri_rdma.decide.placement import Holding, Placed, Taken
from nri_rdma.model.device import DeviceId


class Reservations:
    """The reservations of all sandboxes of this node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holdings: dict[str, tuple[tuple[DeviceId, Holding], ...]] = {}
        self.on_release: list[Callable[[], None]] = []
        """Listeners: called after devices were released, by the thread that released them."""

    def place(self, key: str, question: Question) -> Decision:
        """Decide a question, and reserve the selected devices under the key in the same step, so that two concurrent
        callers never get the same device. After a refusal the key keeps its old reservations; an empty decision
        releases them."""
        with self._lock:
            decision = decide(question, self._taken(but=key))
            held = self._holdings.get(key)
            if decision.refusal is None:
                self._hold(key, question.owner, decision.placed)
            frees = held is not None and held != self._holdings.get(key)
        if frees:
            self._tell_release()
        return decision

    def hold(self, sandbox_id: str, devices: Iterable[tuple[DeviceId, Holding]]) -> None:
        """Reserve devices that an earlier daemon had selected."""
        with self._lock:
            self._holdings[sandbox_id] = tuple(devices)

    def release(self, sandbox_id: str) -> None:
        """Release all reservations of the sandbox."""
        with self._lock:
            self._holdings.pop(sandbox_id, None)
        self._tell_release()

    def taken(self) -> Taken:
        """Return a snapshot of all reservations."""
        with self._lock:
            return self._taken()

    def _tell_release(self) -> None:
        for listener in self.on_release:
            listener()

    def _hold(self, key: str, owner: str, placed: tuple[Placed, ...]) -> None:
        """Record the placed devices under the key. The caller holds the lock."""
        self._holdings.pop(key, None)
        if placed:
            self._holdings[key] = tuple(holding for item in placed for holding in item.holdings(owner))

    def _taken(self, but: str = "") -> Taken:
        taken: dict[DeviceId, set[Holding]] = {}
        for sandbox_id, holdings in self._holdings.items():
            for device_id, holding in holdings if sandbox_id != but else ():
                taken.setdefault(device_id, set()).add(holding)
        return MappingProxyType({device_id: frozenset(holders) for device_id, holders in taken.items()})
