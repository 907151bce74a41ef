"""The events that listeners report to a running daemon, such as removed devices, and the reaction to each."""

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
    """Reacts to events in the thread of the listener that reports them. Slow work is left to workers."""

    def __init__(
        self,
        attachments: Attachments,
        limits: ContainerLimits,
        rescans: tuple[Callable[[], None], ...],
        on_namespace_removed: Callable[[str], None],
    ) -> None:
        """`rescans` start rescans in workers of everything whose changes a listener reports. `on_namespace_removed`
        gets the path of a removed namespace, after its attachments began to end."""
        self._attachments = attachments
        self._limits = limits
        self._rescans = rescans
        self._on_namespace_removed = on_namespace_removed

    def uevent(self, event: Uevent) -> None:
        """Handle a uevent of an RDMA device."""
        if event.action == "remove" and event.number is not None:
            news.node_removed(self._attachments, event.number, event.sequence)
        elif event.action == "move":  # the kernel's name for a rename
            news.look_at_all_again(self._attachments)

    def uevents_lost(self) -> None:
        """Reread the devices of all attachments, because lost uevents may have been about any of them."""
        news.look_at_all_again(self._attachments)

    def netdevs_changed(self, ifindexes: frozenset[int]) -> None:
        """Reread the attachments that share the RDMA devices of these netdevs."""
        news.netdevs_changed(self._attachments, ifindexes)

    def namespace_removed(self, path: str) -> None:
        """End the sandboxes whose network namespace was at this path."""
        news.namespace_removed(self._attachments, path)
        self._on_namespace_removed(path)

    def removals_lost(self) -> None:
        """Check whether each pod's network namespace still exists, because lost events may have reported its
        removal."""
        news.look_at_all_namespaces(self._attachments)

    def process_ended(self, process: ProcessIdentity) -> None:
        """Remove the limits of a container whose process has ended, and end the sandboxes whose first process it
        was."""
        self._limits.process_gone(process)  # first, because the runtime removes the cgroup
        news.process_ended(self._attachments, process)

    def listener_failed(self, name: str) -> None:
        """Rescan everything that any listener reports, because the events of the failed one are lost."""
        log.error("changes may have been missed, rescanning everything", extra={"listener": name})
        for rescan in self._rescans:
            rescan()
        self.uevents_lost()
        self.removals_lost()
