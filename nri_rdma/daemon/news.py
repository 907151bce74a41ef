"""The reactions of a running daemon to events that listeners report, such as removed devices."""

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
    """Reacts to events such as a removed device, in the thread of the listener that reports the event. Slow work is
    left to workers."""

    def __init__(
        self,
        attachments: Attachments,
        limits: ContainerLimits,
        rescans: tuple[Callable[[], None], ...],
        on_namespace_removed: Callable[[str], None],
    ) -> None:
        """`rescans` are functions that start a rescan in a worker: one of the node, one of the CDI specs. They are
        called when a listener fails, because its events are lost. `on_namespace_removed` gets the path of a removed
        network namespace, after the attachments in it have begun to end."""
        self._attachments = attachments
        self._limits = limits
        self._rescans = rescans
        self._on_namespace_removed = on_namespace_removed

    def uevent(self, event: Uevent) -> None:
        """Make attachments reread their devices if the event removes a character device or renames a device. Other
        events are ignored."""
        if event.action == "remove" and event.number is not None:
            news.node_removed(self._attachments, event.number, event.sequence)
        elif event.action == "move":  # the kernel's name for a rename
            news.look_at_all_again(self._attachments)

    def uevents_lost(self) -> None:
        """Reread the devices of all attachments, because lost uevents may have been about any of them."""
        news.look_at_all_again(self._attachments)

    def netdevs_changed(self, ifindexes: frozenset[int]) -> None:
        """Make the attachments that share the RDMA devices of these netdevs reread their GIDs."""
        news.netdevs_changed(self._attachments, ifindexes)

    def namespace_removed(self, path: str) -> None:
        """End the sandboxes whose network namespace was at this path."""
        news.namespace_removed(self._attachments, path)
        self._on_namespace_removed(path)

    def removals_lost(self) -> None:
        """End the sandboxes whose network namespace no longer exists. Called when events about removed namespaces were
        lost."""
        news.look_at_all_namespaces(self._attachments)

    def process_ended(self, process: ProcessIdentity) -> None:
        """Remove the RDMA limits of the container whose process has ended, and end the sandboxes that live as long as
        this process."""
        self._limits.process_gone(process)  # first, because the runtime removes the cgroup
        news.process_ended(self._attachments, process)

    def listener_failed(self, name: str) -> None:
        """Start all rescans, and check all attachments, because the events of the failed listener are lost. `name` is
        the name of the listener."""
        log.error("changes may have been missed, rescanning everything", extra={"listener": name})
        for rescan in self._rescans:
            rescan()
        self.uevents_lost()
        self.removals_lost()
