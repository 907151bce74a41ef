"""Which of the runtime's handlers have the guard, for the page of metrics: asked for again when somebody scrapes it and
the last answer is old. The runtime's set-up changes only with its restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from nri_rdma.config.settings import Settings
from nri_rdma.host.containerd.client import ContainerdError
from nri_rdma.host.containerd.handlers import CRIO_SOCKET
from nri_rdma.host.guards import running_setups
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

AGAIN_S = 15.0
"""How long an answer is new."""


class RuntimeGuards:
    """Safe for use by several threads; never blocks."""

    def __init__(
        self,
        settings: Settings,
        workers: Workers,
        *,
        crio_socket: Path = CRIO_SOCKET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._sockets = (settings.containerd_socket, crio_socket)
        self._clock = clock
        self._lock = threading.Lock()
        self._due = float("-inf")
        self._told: Mapping[str, bool] = {}

    def told(self) -> Mapping[str, bool]:
        """Return by handler whether its containers have the guard, as it was last known; nothing of a handler of which
        that cannot be known. Have a worker ask again where that is old."""
        with self._lock:
            is_due = self._clock() >= self._due
            if is_due:
                self._due = self._clock() + AGAIN_S
        if is_due:
            self._workers.submit("guards", self._ask)
        return self._told

    def _ask(self) -> None:
        try:
            found = running_setups(self._sockets, self._settings)
        except ContainerdError as error:  # it may be starting: what was known of it before may be wrong
            log.debug("the runtime does not say which handlers it has", extra={"error": str(error)})
            found = None
        self._told = {it.name: not it.fault for it in found or () if it.is_known}
