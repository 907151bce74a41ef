"""Access to the kubelet, if this host has one: a worker thread connects as soon as the kubelet's socket exists."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path

from nri_rdma.errors import KubeletError
from nri_rdma.host.kubelet.podresources import BUDGET_S, PodResources
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.tasks.waiting import has_failed, settled
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)


class KubeletDoor:
    """Asks the kubelet which devices it allocated to pods. On a host without a kubelet, it answers that it knows no
    pod. Safe for use by several threads; the creator closes it."""

    def __init__(self, socket: Path, workers: Workers, *, budget_s: float = BUDGET_S) -> None:
        self._socket = socket
        self._workers = workers
        self._budget_s = budget_s
        self._client = PodResources(socket, budget_s=budget_s)
        self._lock = threading.Lock()
        self._warming: Future[None] | None = None
        self.tells = False
        """True once the kubelet has answered a query."""

    def begin(self) -> None:
        """Have a worker thread connect, if the kubelet's socket exists and no connection has begun, or the last one
        failed for want of a file descriptor, for example."""
        with self._lock:
            if (self._warming is None or has_failed(self._warming)) and self._socket.exists():
                self._warming = self._workers.submit("kubelet", self._warm)

    @property
    def is_there(self) -> bool:
        """Return whether the kubelet's socket exists or has existed."""
        # Every pod with devices waits for this.
        return self._warming is not None or os.access(self._socket, os.F_OK)

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the devices that the kubelet allocated to a pod; None if the kubelet does not know the pod or is not
        there. Raises KubeletError if the kubelet does not answer in time or its answer is invalid.

        If the kubelet started after this daemon, the first caller waits for the connection, for at most `budget_s`
        seconds.
        """
        self.begin()
        if self._warming is None:
            return None
        settled(self._warming, self._budget_s)
        allocation = self._client.of_pod(namespace, name)
        self.tells = True
        return allocation

    def close(self) -> None:
        """Close the connection. Closing twice does nothing."""
        self._client.close()

    def _warm(self) -> None:
        try:
            self._client.warm()
        except KubeletError as error:  # the next caller tries again
            log.warning("the kubelet does not answer", extra={"error": str(error)})
        else:
            self.tells = True
            log.info("the kubelet reports its allocations", extra={"socket": str(self._socket)})
