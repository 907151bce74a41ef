"""The node as it was last read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from nri_rdma.attach.port import KernelError
from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.device import Node
from nri_rdma.tasks.workers import Workers


class NodeSource:
    """The node as last read. `refresh` reads it anew and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queued: Future[None] | None = None
        self._queue_lock = threading.Lock()
        self._asked_for = 0
        self._is_read = False
        self.on_read: list[Callable[[], None]] = []
        """Called after each reading, by who read, before anybody is told of it."""
        self.current = read()

    @property
    def is_current(self) -> bool:
        """Whether the last reading was a good one, and nobody has asked for another since."""
        return self._is_read and not self._asked_for

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker read it anew. Who asks while a reading is queued gets that one: it has not begun yet."""
        with self._queue_lock:
            if self._queued is None:
                self._queued = workers.submit("refresh", self._begin)
                self._asked_for += 1
            return self._queued

    def _begin(self) -> None:
        with self._queue_lock:
            self._queued = None
        try:
            self.refresh()
        finally:
            with self._queue_lock:
                self._asked_for -= 1

    def refresh(self) -> Node:
        """Read the node anew. Raises InventoryError, and keeps what was known, when it cannot be read."""
        with self._lock:
            self._is_read = False
            try:
                self.current = self._read()
                for listener in self.on_read:
                    listener()
                self._is_read = True
            except (KernelError, OSError) as error:
                raise InventoryError(
                    ErrorCode.INVENTORY, f"the node cannot be read: {error}", hint="try again; see `nri-rdma inventory`"
                ) from error
            return self.current
