"""The news that listeners report to a running daemon, and what it does about them."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nri_rdma.attach import news
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.port import ProcessIdentity
from nri_rdma.host.limits import ContainerLimits
from nri_rdma.wire.uevent import Uevent

log = logging.getLogger(__name__)


class News:
    """Handles news in the thread that reports them, and leaves what takes time to workers."""

    def __init__(
        self,
        attachments: Attachments,
        limits: ContainerLimits,
        rescans: tuple[Callable[[], None], ...],
        on_namespace_removed: Callable[[str], None],
    ) -> None:
        """`rescans` have all read again that any listener reports changes of, each in a worker; `on_namespace_removed`
        gets the path of a namespace when its attachments are ending."""
        self._attachments = attachments
        self._limits = limits
        self._rescans = rescans
        self._on_namespace_removed = on_namespace_removed

    def uevent(self, event: Uevent) -> None:
        """Handle a uevent of an RDMA device."""
        if event.action == "remove" and event.number is not None:
            news.node_removed(self._attachments, event.number, event.sequence)
        elif event.action == "move":  # the kernel's word for another name
            news.look_at_all_again(self._attachments)

    def uevents_lost(self) -> None:
        """Reread all attachments: any device may have been removed or renamed."""
        news.look_at_all_again(self._attachments)

    def netdevs_changed(self, ifindexes: frozenset[int]) -> None:
        """Reread the attachments that share the devices of these netdevs."""
        news.netdevs_changed(self._attachments, ifindexes)

    def namespace_removed(self, path: str) -> None:
        """End the sandboxes of a network namespace that is no longer at its path."""
        news.namespace_removed(self._attachments, path)
        self._on_namespace_removed(path)

    def removals_lost(self) -> None:
        """Look for all namespaces: any of them may have been removed."""
        news.look_at_all_namespaces(self._attachments)

    def process_ended(self, process: ProcessIdentity) -> None:
        """Lift the limits of a container whose process ended, and end the sandboxes that lived as long as it."""
        self._limits.process_gone(process)  # first: the runtime removes the cgroup
        news.process_ended(self._attachments, process)

    def listener_failed(self, name: str) -> None:
        """Look at all that any listener would have reported: what the failed one had taken is lost."""
        log.error("changes may have been missed, looking at everything", extra={"listener": name})
        for rescan in self._rescans:
            rescan()
        self.uevents_lost()
        self.removals_lost()
