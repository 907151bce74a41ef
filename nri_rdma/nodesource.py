"""The node as it was last read."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future

from nri_rdma.attach.port import KernelError
from nri_rdma.attach.workers import Workers
from nri_rdma.errors import ErrorCode, InventoryError
from nri_rdma.model.device import Node


class NodeSource:
    """The node as last read. `refresh` reads it anew and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queued: Future[None] | None = None
        self._queue_lock = threading.Lock()
        self.on_read: Callable[[], None] = lambda: None
        """Called after each reading, by who read, before anybody is told of it."""
        self.current = read()

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker read it anew. Who asks while a reading is queued gets that one: it has not begun yet."""
        with self._queue_lock:
            if self._queued is None:
                self._queued = workers.submit("refresh", self._begin)
            return self._queued

    def _begin(self) -> None:
        with self._queue_lock:
            self._queued = None
        self.refresh()

    def refresh(self) -> Node:
        """Read the node anew. Raises InventoryError, and keeps what was known, when it cannot be read."""
        with self._lock:
            try:
                self.current = self._read()
                self.on_read()
            except (KernelError, OSError) as error:
                raise InventoryError(
                    ErrorCode.INVENTORY, f"the node cannot be read: {error}", hint="try again; see `nri-rdma inventory`"
                ) from error
            return self.current
