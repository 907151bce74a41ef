"""What others give to containers, wired for a daemon: the CDI directories, the kubelet, and who draws conclusions."""

from __future__ import annotations

import logging

from nri_rdma.adopter import Adopter
from nri_rdma.attach.workers import Workers
from nri_rdma.cdi.registry import Registry
from nri_rdma.cdi.watch import CdiRegistry
from nri_rdma.config import Settings
from nri_rdma.kubelet.door import KubeletDoor
from nri_rdma.lifecycle import NodeSource

log = logging.getLogger(__name__)

_NO_SPECS = Registry(devices={})


class Others:
    """Whoever makes it closes it. Until it is opened, nothing of others is known."""

    def __init__(self, settings: Settings, node: NodeSource, workers: Workers) -> None:
        self._directories = settings.cdi_dirs
        self._specs: CdiRegistry | None = None
        self._kubelet = KubeletDoor(settings.kubelet_socket, workers)
        self.adopter = Adopter(
            node=lambda: node.current,
            registry=self._registry,
            prefix=settings.annotation_prefix,
            adoption=settings.adopt,
            kubelet=self._kubelet,
        )
        node.on_read = self.adopter.read_again

    def open(self) -> None:
        """Read the specs, and again whenever they change; have the kubelet connected to, if it is there."""
        try:
            self._specs = CdiRegistry(self._directories, lambda _registry: self.adopter.read_again())
        except OSError as error:
            log.warning("CDI specs are not read: no inotify instance is left", extra={"error": str(error)})
        else:
            self.adopter.read_again()
        self._kubelet.begin()

    def close(self) -> None:
        """End. Again is no error."""
        if self._specs is not None:
            self._specs.close()
        self._kubelet.close()

    def _registry(self) -> Registry:
        return self._specs.current if self._specs is not None else _NO_SPECS
