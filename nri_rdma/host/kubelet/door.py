"""The kubelet, if there is one: asked as soon as its socket exists; a worker connects."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future
from pathlib import Path

from nri_rdma.errors import KubeletError
from nri_rdma.host.kubelet.podresources import BUDGET_S, PodResources
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)


class KubeletDoor:
    """Asks the kubelet; without a kubelet it knows nothing of pods. Safe for use by several threads; whoever makes it
    closes it."""

    def __init__(self, socket: Path, workers: Workers, *, budget_s: float = BUDGET_S) -> None:
        self._socket = socket
        self._workers = workers
        self._budget_s = budget_s
        self._client = PodResources(socket, budget_s=budget_s)
        self._lock = threading.Lock()
        self._warming: Future[None] | None = None
        self.tells = False
        """Whether the kubelet has answered once."""

    def begin(self) -> None:
        """Have a worker connect, if the kubelet's socket exists."""
        with self._lock:
            if self._warming is None and self._socket.exists():
                self._warming = self._workers.submit("kubelet", self._warm)

    @property
    def is_there(self) -> bool:
        """Return whether the kubelet's socket exists, or did."""
        return self._warming is not None or os.access(self._socket, os.F_OK)  # every pod that asks waits for this

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return what the kubelet gave to the pod; None when the kubelet does not know the pod or is not there. Raises
        KubeletError. Whoever asks first, of a kubelet that has started after us, waits for the connection, at most as
        long as for an answer."""
        self.begin()
        if self._warming is None:
            return None
        settled(self._warming, self._budget_s)
        allocation = self._client.of_pod(namespace, name)
        self.tells = True
        return allocation

    def close(self) -> None:
        """End the connection. Closing twice is no error."""
        self._client.close()

    def _warm(self) -> None:
        try:
            self._client.warm()
        except KubeletError as error:  # the next caller tries again
            log.warning("the kubelet does not answer", extra={"error": str(error)})
        else:
            self.tells = True
            log.info("the kubelet reports its allocations", extra={"socket": str(self._socket)})
