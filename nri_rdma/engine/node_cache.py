"""Cache of the node's last scan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from nri_rdma.attach.port import KernelError
from nri_rdma.errors import ErrorCode, InventoryError, NotReadyError
from nri_rdma.model.device import Node
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import wait
from nri_rdma.tasks.workers import Workers

_LOOK_PAUSE_S = 5.0
"""Minimum interval between rescans for something that the kernel does not announce: a GPU that was reported (a MIG
device's UUID names no GPU), a device whose routes are gone."""


class NodeCache:
    """Holds the node's last scan. `refresh` scans the node and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queued: Future[None] | None = None
        self._queue_lock = threading.Lock()
        self._asked_for = 0
        self._is_read = False
        self.on_read: list[Callable[[], None]] = []
        """Called after each scan by the scanning thread, before those who wait for the scan are notified."""
        self.current = read()

    @property
    def is_current(self) -> bool:
        """Return whether the last scan succeeded, and none was requested since."""
        return self._is_read and not self._asked_for

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker rescan the node. A caller who asks while a scan is queued shares it: it has not begun yet."""
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
        """Rescan the node. Raise InventoryError, and keep the last scan, when the node cannot be read."""
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


class NodeReader:
    """The cache, and the workers that rescan the node before a pod is refused. Safe for use by several threads."""

    def __init__(self, cache: NodeCache, readers: Workers) -> None:
        self.cache = cache
        self.readers = readers
        self._looked = 0.0

    def rescan(self) -> Future[None]:
        """Have a worker rescan the node."""
        return self.cache.refresh_in(self.readers)

    def await_rescan(self, pod: Pod, by: float) -> None:
        """Wait until the node is rescanned. Raise NotReadyError when that is not done by `by` (seconds of
        `time.monotonic`), and the scan's own error."""
        rescanned = self.rescan()
        wait(rescanned, by - time.monotonic())
        if not rescanned.done():
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "what was free is taken, and reading the node anew takes longer than the runtime waits",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )

    def look_again(self) -> None:
        """Request a rescan for something missing that the kernel does not announce. The next pod is placed with its
        result."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_PAUSE_S:
            self._looked = now
            self.rescan()
