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
"""Minimum interval between rescans for changes that the kernel does not announce: a GPU that was reported to us but is
not known (a MIG device's UUID names no GPU), a device whose routes are gone."""

BURST_S = 0.05
"""The pause between a change on the host and the rescan, in seconds. The move of one netdev causes many events, and
each scan keeps the interpreter from attaching for 4 to 7 ms."""
RELEASE_S = 1.0
"""Longest wait for the release of devices, in seconds. A release may fail and is then retried later."""


class NodeCache:
    """Holds the node's last scan in `current`. `refresh` rescans the node and blocks."""

    def __init__(self, read: Callable[[], Node], schedule: Schedule = start_timer) -> None:
        self._read = read
        self._schedule = schedule
        self._lock = threading.Lock()
        self._next: _NextScan | None = None
        self._queue_lock = threading.Lock()
        self._asked_for = 0
        self._is_read = False
        self.on_read: list[Callable[[], None]] = []
        """Listeners: called after each scan by the scanning thread, before the threads that wait for the scan go on."""
        self.unannounced: list[Callable[[], None]] = []
        """Functions that each look for one kind of change that the kernel does not announce, and request a rescan if
        they find one."""
        self.is_outdated: Callable[[], bool] = lambda: False
        """Returns whether the state of a port has changed since the last scan, for the devices whose port changes the
        kernel does not announce. Blocks."""
        self.current = read()

    def refresh_if_outdated(self) -> None:
        """Rescan the node if the last scan is outdated. Raise InventoryError if the node cannot be read."""
        if self.is_outdated():
            self.refresh()

    def look_for_unannounced(self) -> None:
        """Look for hardware changes for which the kernel sends no event, and request a rescan of the node if there are
        any. Blocks, so only a worker may call it."""
        for look in self.unannounced:
            look()

    @property
    def is_current(self) -> bool:
        """Whether the last scan succeeded and no other scan was requested since."""
        return self._is_read and not self._asked_for

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker rescan the node; return a future that is done with the scan. A scan that was requested before
        and has not begun yet is shared."""
        coming, _ = self._expect()
        self._queue(coming, workers)
        return coming.done

    def refresh_soon(self, workers: Workers) -> Future[None]:
        """Have a worker rescan the node after BURST_S, or earlier if another caller requests a scan. Return a future
        that is done with the scan."""
        coming, is_new = self._expect()
        if is_new:
            coming.cancel_pause = self._schedule(BURST_S, partial(self._queue, coming, workers))
        return coming.done

    def _expect(self) -> tuple[_NextScan, bool]:
        """Return the next scan, which has not begun yet, and whether it was created by this call."""
        with self._queue_lock:
            if self._next is not None:
                return self._next, False
            self._next = _NextScan()
            self._asked_for += 1
            return self._next, True

    def _queue(self, coming: _NextScan, workers: Workers) -> None:
        """Queue a scan for a worker, unless it was queued before."""
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
        """Rescan the node and return the scan. If the node cannot be read, keep the last scan and raise
        InventoryError."""
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
    """A scan that has not begun: it waits for a free worker, or for the end of the pause after a change."""

    def __init__(self) -> None:
        self.done: Future[None] = Future()
        self.is_queued = False
        self.cancel_pause: Callable[[], None] = lambda: None

    def take_over(self, task: Future[None]) -> None:
        """End `done` in the same way as the worker's task ended."""
        if task.cancelled():
            self.done.cancel()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(None)


class NodeReader:
    """Rescans the node for pods: the cache of the last scan, with the workers that renew it. Thread-safe."""

    def __init__(self, cache: NodeCache, readers: Workers, releases: Callable[[], Iterable[Future[None]]]) -> None:
        """`releases` returns the unfinished releases of devices that are back on the host; each ends with a rescan."""
        self.cache = cache
        self._releases = releases
        self.readers = readers
        self._looked = 0.0

    def rescan(self) -> Future[None]:
        """Have a worker rescan the node."""
        return self.cache.refresh_in(self.readers)

    def await_rescan(self, pod: Pod, by: float) -> None:
        """Rescan the node and wait for it. Raise NotReadyError if the scan is not done by `by` (seconds of
        `time.monotonic`), and InventoryError if it fails."""
        rescanned = self.rescan()
        wait(rescanned, by - time.monotonic())
        if not rescanned.done():
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "no suitable device is known to be free, and rescanning the node takes longer than the runtime waits",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )

    def await_ports(self, by: float) -> None:
        """Update the state of ports whose changes the kernel does not announce, and wait for it, at most until `by`
        (seconds of `time.monotonic`). Raise InventoryError if the node cannot be read."""
        if any(device.is_silent for device in self.cache.current.devices):
            wait(self.readers.submit("refresh", self.cache.refresh_if_outdated), by - time.monotonic())

    def await_releases(self, by: float) -> None:
        """Wait until the devices that are back on the host are free for other pods, at most RELEASE_S and at most until
        `by` (seconds of `time.monotonic`)."""
        all_settled(tuple(self._releases()), min(by, time.monotonic() + RELEASE_S))

    def look_again(self) -> None:
        """Request a rescan of the node, because a device that a pod needs may have come without an event of the kernel.
        The caller does not wait: the next pod uses the result."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_PAUSE_S:
            self._looked = now
            self.rescan()
