"""Cache of the node's last scan."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.port import KernelError
from nri_rdma.attach.timers import Schedule, start_timer
from nri_rdma.errors import ErrorCode, InventoryError, NotReadyError
from nri_rdma.model.device import Node
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import all_settled, wait
from nri_rdma.tasks.workers import Workers

_LOOK_PAUSE_S = 5.0
"""Minimum interval between rescans for something that the kernel does not announce: a GPU that was reported (a MIG
device's UUID names no GPU), a device whose routes are gone."""

BURST_S = 0.05
"""How long after news the node is rescanned: the move of a netdev is many news, and a scan takes the interpreter for 4
to 7 ms from those who attach."""
RELEASE_S = 1.0
"""Longest wait for a release: it may fail, and is tried again then."""


class NodeCache:
    """Holds the node's last scan. `refresh` scans the node and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node], schedule: Schedule = start_timer) -> None:
        self._read = read
        self._schedule = schedule
        self._lock = threading.Lock()
        self._next: _NextScan | None = None
        self._queue_lock = threading.Lock()
        self._asked_for = 0
        self._is_read = False
        self.on_read: list[Callable[[], None]] = []
        """Called after each scan by the scanning thread, before those who wait for the scan are notified."""
        self.unannounced: list[Callable[[], None]] = []
        """Each looks for changes of one kind of which the kernel gives no news, and has the node rescanned for them."""
        self.is_outdated: Callable[[], bool] = lambda: False
        """Returns whether a port of a silent device has another state than at the last scan. Blocks."""
        self.current = read()

    def refresh_if_outdated(self) -> None:
        """Rescan the node if it is outdated. Raise as `refresh` does."""
        if self.is_outdated():
            self.refresh()

    def look_for_unannounced(self) -> None:
        """Have the node rescanned if something has changed that nobody announced. Blocks: for a worker."""
        for look in self.unannounced:
            look()

    @property
    def is_current(self) -> bool:
        """Return whether the last scan succeeded, and none was requested since."""
        return self._is_read and not self._asked_for

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker rescan the node. A caller who asks while a scan is queued or due soon shares it: it has not
        begun yet."""
        coming, _ = self._expect()
        self._queue(coming, workers)
        return coming.done

    def refresh_soon(self, workers: Workers) -> Future[None]:
        """Have a worker rescan the node BURST_S from now, or with the next scan that somebody asks for."""
        coming, is_new = self._expect()
        if is_new:
            coming.cancel_pause = self._schedule(BURST_S, partial(self._queue, coming, workers))
        return coming.done

    def _expect(self) -> tuple[_NextScan, bool]:
        """Return the next scan, which has not begun, and whether nobody expected it before."""
        with self._queue_lock:
            if self._next is not None:
                return self._next, False
            self._next = _NextScan()
            self._asked_for += 1
            return self._next, True

    def _queue(self, coming: _NextScan, workers: Workers) -> None:
        """Queue a scan, unless it is queued or was."""
        with self._queue_lock:
            if coming.is_queued:
                return
            coming.is_queued = True
        coming.cancel_pause()
        workers.submit("refresh", self._begin).add_done_callback(coming.take_over)

    def _begin(self) -> None:
        with self._queue_lock:
            self._next = None
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


class _NextScan:
    """A scan that has not begun: it waits for a worker, or for the pause after news."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()
        self.is_queued = False
        self.cancel_pause: Callable[[], None] = lambda: None

    def take_over(self, task: Future[None]) -> None:
        """Tell those who wait how the worker's task ended."""
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class NodeReader:
    """The cache, and the workers that rescan the node before a pod is refused. Safe for use by several threads."""

    def __init__(self, cache: NodeCache, readers: Workers, releases: Callable[[], Iterable[Future[None]]]) -> None:
        """`releases` returns those under way of devices that are home: each ends with a rescan."""
        self.cache = cache
        self._releases = releases
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

    def await_ports(self, by: float) -> None:
        """Wait until the node's ports are known as they are now, at most until `by`: the kernel gives no news of those
        of silent devices. Raise InventoryError when the node cannot be read."""
        if any(device.is_silent for device in self.cache.current.devices):
            wait(self.readers.submit("refresh", self.cache.refresh_if_outdated), by - time.monotonic())

    def await_releases(self, by: float) -> None:
        """Wait until devices that are home by now are free for others, at most until `by`, as above."""
        all_settled(tuple(self._releases()), min(by, time.monotonic() + RELEASE_S))

    def look_again(self) -> None:
        """Request a rescan for something missing that the kernel does not announce. The next pod is placed with its
        result."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_PAUSE_S:
            self._looked = now
            self.rescan()
