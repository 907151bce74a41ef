"""The devices that attachments hold: reserved again after a restart, released when they are home."""

from __future__ import annotations

import gc
import sys
import time

from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.timers import Schedule, start_timer
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.tasks.workers import Workers

COLLECT_PAUSE_S = 1.0
"""Garbage is not collected more often, however many pods end."""
COLLECT_AFTER_S = 0.1
"""How long after a release garbage is collected: all threads stand still meanwhile, also the one that answers the
runtime."""


class Releases:
    """Holds and releases devices by attachment. Safe for use by several threads."""

    def __init__(
        self, reservations: Reservations, node: NodeCache, readers: Workers, schedule: Schedule = start_timer
    ) -> None:
        """`readers` are the one thread that rescans the node."""
        self._reservations = reservations
        self._node = node
        self._readers = readers
        self._schedule = schedule
        self._collected = 0.0
        self._modules = 0

    def hold(self, record: SandboxRecord) -> None:
        """Hold what an earlier daemon attached, from before the first event on."""
        self._reservations.hold(record.key, record.holdings)

    def release(self, key: str) -> None:
        """Rescan the node, because devices are home; then let others have them. Many that come home at once share a
        scan."""
        self._node.refresh_in(self._readers).result()
        self._reservations.release(key)
        self._collect_garbage()

    def _collect_garbage(self) -> None:
        """Collect what is left of pods that ended (futures, their callbacks, tracebacks), within a second or so. Left
        to the collector's own pace it lies between what lives: memory grew by 2.4 KiB with each pod, for a thousand
        pods."""
        now = time.monotonic()
        if now - self._collected >= COLLECT_PAUSE_S:
            self._collected = now
            self._schedule(COLLECT_AFTER_S, self._collect)

    def _collect(self) -> None:
        """Collect, and have later collections pass over what has been imported since the last one: with the libraries
        of gRPC and Kubernetes a collection took 12 to 30 ms."""
        gc.collect()
        if len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            gc.freeze()
