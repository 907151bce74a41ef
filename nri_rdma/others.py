"""What others give to containers, wired for a daemon: the CDI directories, the kubelet, and who draws conclusions."""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING

from nri_rdma.adopter import Adopter
from nri_rdma.attach.workers import Workers
from nri_rdma.cdi.registry import Registry
from nri_rdma.config import Settings
from nri_rdma.lifecycle import NodeSource
from nri_rdma.model.allocation import PodAllocation

if TYPE_CHECKING:
    from nri_rdma.cdi.watch import CdiRegistry
    from nri_rdma.kubelet.door import KubeletDoor

log = logging.getLogger(__name__)

_NO_SPECS = Registry(devices={})


class Others:
    """Whoever makes it closes it. A worker opens it (it imports YAML and, where a kubelet is, grpc: a start would be
    late for the first pod); until then no container with RDMA devices from others is answered for."""

    def __init__(self, settings: Settings, node: NodeSource, workers: Workers) -> None:
        self._settings = settings
        self._workers = workers
        self._specs: CdiRegistry | None = None
        self._kubelet: KubeletDoor | None = None
        self._opening: Future[None] | None = None
        self.adopter = Adopter(
            node=lambda: node.current,
            registry=self._registry,
            prefix=settings.annotation_prefix,
            adoption=settings.adopt,
            kubelet=self,
            is_ready=False,
        )
        node.on_read = self.adopter.read_again

    def open_later(self) -> None:
        """Have a worker read the specs, and again whenever they change, and connect to the kubelet if it is there.
        Again is no error: the runtime may connect more than once."""
        if self._opening is None:
            self._opening = self._workers.submit("specs", self._open)
            self._opening.add_done_callback(_log_bug)

    @property
    def tells(self) -> bool:
        """Whether a kubelet has answered."""
        return self._kubelet is not None and self._kubelet.tells

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """What the kubelet gave to the pod; None where it does not know it or is not there. Raises KubeletError."""
        return self._kubelet.of_pod(namespace, name) if self._kubelet is not None else None

    def close(self) -> None:
        """End. After the workers; again is no error."""
        if self._specs is not None:
            self._specs.close()
        if self._kubelet is not None:
            self._kubelet.close()

    def _open(self) -> None:
        from nri_rdma.cdi.watch import CdiRegistry
        from nri_rdma.kubelet.door import KubeletDoor

        try:
            self._specs = CdiRegistry(self._settings.cdi_dirs, lambda _registry: self.adopter.read_again())
        except OSError as error:
            log.warning("CDI specs are not read: no inotify instance is left", extra={"error": str(error)})
        self._kubelet = KubeletDoor(self._settings.kubelet_socket, self._workers)
        self._kubelet.begin()
        self.adopter.set_ready()

    def _registry(self) -> Registry:
        return self._specs.current if self._specs is not None else _NO_SPECS


def _log_bug(done: Future[None]) -> None:
    """What files can hold is answered by their reader; anything else is a bug, and containers with RDMA devices from
    others are refused until it is mended."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("the CDI specs were not read", exc_info=error)
