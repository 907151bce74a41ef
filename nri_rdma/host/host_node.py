"""Reads this host's node (its RDMA devices, netdevs and GPUs) from sysfs and the kernel, and reads it again when the
kernel reports a change."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol

from nri_rdma.attach.numbers import Resolved
from nri_rdma.config.settings import Settings
from nri_rdma.decide.inventory import assemble, matters, watched
from nri_rdma.errors import AttachError
from nri_rdma.host.capacities import Capacities
from nri_rdma.host.cgroup import has_rdma_controller
from nri_rdma.host.netlink.events.linkevents import LinkEvents, open_link_socket
from nri_rdma.host.netlink.events.uevents import RdmaUevents
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.prover import Prover
from nri_rdma.host.sysfs.scan import is_own, other_ports, read_char_devices, scan
from nri_rdma.host.verbs_process import VerbsProcess
from nri_rdma.host.watch.programs import ProgramNews
from nri_rdma.model.device import Node, Scan
from nri_rdma.model.usage import Change, HostUse, Watched
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.workers import Workers
from nri_rdma.wire.uevent import Uevent

log = logging.getLogger(__name__)


class Cache(Protocol):
    """The owner of the node that `HostNode.read` returned last: it decides when the node is read again."""

    current: Node
    on_read: list[Callable[[], None]]
    """Callbacks that run after each reading of the node."""
    unannounced: list[Callable[[], None]]
    """Callbacks that run periodically, to look for changes that the kernel does not announce."""
    is_outdated: Callable[[], bool]
    """Called before devices are chosen for a pod. Returns whether the node has changed in a way that the kernel does
    not announce and that the choice must not miss."""

    @property
    def is_current(self) -> bool:
        """Return whether the last reading of the node succeeded and no further reading has been requested since."""

    def refresh_soon(self, workers: Workers) -> Future[None]:
        """Have a worker read the node again, and return a future that is done after the reading. Several requests in a
        short time cause one reading."""


class Receiver(Protocol):
    """The receiver of changes that listener threads report. Its methods run in those threads, so they must not
    block."""

    def uevent(self, event: Uevent) -> None:
        """Handle a uevent of an RDMA device: the kernel reports that the device came, went or changed."""

    def uevents_lost(self) -> None:
        """Handle the loss of uevents: any RDMA device may have come, gone or moved unnoticed. The node is read again
        afterwards."""

    def netdevs_changed(self, ifindexes: frozenset[int]) -> None:
        """Handle changes of netdevs that belong to RDMA devices. Called after the node was read again."""


class HostNode:
    """Reads the node from sysfs and from `kernel`. It learns of changes only after `listen` was called."""

    def __init__(self, settings: Settings, readers: Workers, workers: Workers, on_read: Callable[[], None]) -> None:
        """Prepare to read the node. Raises KernelError if the host's network namespace cannot be opened.

        `readers` read the node; `workers` query devices for their capacity. `on_read` is called after each reading that
        `read_later` requested, even if the reading failed.
        """
        self._settings = settings
        memory = settings.state_dir / "capacities.json"
        process = VerbsProcess(settings.verbs_python)
        self.capacities = Capacities(process, settings.pools, workers, self.read_later, memory)
        """The capacities of RDMA devices in pools with the setting `shares`."""
        self.prover = Prover(settings.verbs_python, settings.cgroup_root)
        self._readers = readers
        self._on_read = on_read
        self._watched = Watched()
        self._changed: deque[int] = deque()
        """The ifindexes of watched netdevs for which the kernel has reported changes since the last reading."""
        self._uevents: RdmaUevents | None = None
        self._link_events: LinkEvents | None = None
        self.kernel = LinuxKernel(
            lifelines=settings.lifelines(os.environ), is_as_read=self._is_as_read, sysfs=settings.sysfs_root
        )
        self._programs = ProgramNews(self.kernel.programs)
        self._cache: Cache | None = None
        self._coming: Future[None] | None = None

    def listen(self, listeners: Listeners, cache: Cache, receiver: Receiver) -> None:
        """Listen for changes of RDMA devices and their netdevs. After each change, have `cache` read the node again and
        notify `receiver`. Raises OSError if a netlink socket cannot be opened."""
        self._cache = cache
        cache.on_read.append(lambda: self._tell_changed(receiver))
        cache.unannounced += (self._notice_programs, self._notice_ports)
        cache.is_outdated = self._are_ports_other
        self._uevents = RdmaUevents(listeners, receiver.uevent, receiver.uevents_lost, self.read_later)
        self._link_events = LinkEvents(listeners, open_link_socket(), self._matters, self.read_later)

    def read_later(self) -> None:
        """Request a reading of the node, because RDMA devices or their netdevs came, went or are used differently.
        Devices for the next pod are then chosen from up-to-date data."""
        if self._cache is not None:
            coming = self._cache.refresh_soon(self._readers)
            if coming is not self._coming:  # one callback per reading, however many changes requested it
                self._coming = coming
                coming.add_done_callback(self._was_read)

    def close(self) -> None:
        """Stop listening for changes, querying devices for their capacity, and testing RDMA in containers."""
        self.capacities.close()
        self.prover.close()
        for events in (self._uevents, self._link_events):
            if events is not None:
                events.close()

    def read(self) -> Node:
        """Read the present state of the node, and watch its netdevs for changes from then on. Raises InventoryError if
        the sysfs root is no sysfs, and KernelError or OSError if the kernel refuses a query."""
        if self._link_events is not None:
            self._link_events.take_in()
        found, use, node = read_host(self._settings, self.kernel, self.capacities.pids)
        self._watched = watched(found, node, use)
        return self.capacities.added_to(node)

    def _matters(self, change: Change) -> bool:
        self._changed.extend(change.ifindexes & self._watched.ifindexes)
        return matters(change, self._watched)

    def _tell_changed(self, receiver: Receiver) -> None:
        changed = frozenset(self._changed.popleft() for _ in range(len(self._changed)))
        if changed:
            receiver.netdevs_changed(changed)

    def _is_as_read(self) -> bool:
        """Return whether the node is unchanged since the last reading, as far as the kernel reports changes."""
        events, cache = self._link_events, self._cache
        return events is not None and cache is not None and events.is_all_told() and cache.is_current

    def _notice_programs(self) -> None:
        """Request a reading of the node if the eBPF programs on netdevs of RDMA devices differ from those at the last
        reading."""
        if self._cache is not None and self._programs.are_there(self._cache.current.devices, self._watched.ifindexes):
            self.read_later()

    def _notice_ports(self) -> None:
        """Request a reading of the node if a port has changed its state since the last reading. Only ports without a
        netdev are checked, because the kernel announces changes of the others."""
        if self._are_ports_other():
            self.read_later()

    def _are_ports_other(self) -> bool:
        devices = self._cache.current.devices if self._cache is not None else ()
        return other_ports(self._settings.sysfs_root, (device for device in devices if device.is_silent))

    def _was_read(self, done: Future[None]) -> None:
        """Log the failure of a reading that `read_later` requested, call `on_read`, and start queries of new devices.
        After a failure the node of the previous reading stays in use."""
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.warning("the rescan of the node failed", extra={"error": str(error)})
        self._on_read()
        if self._cache is not None:
            self.capacities.node_was_read(self._cache.current)


def read_host(settings: Settings, kernel: LinuxKernel, ignored: Collection[int] = ()) -> tuple[Scan, HostUse, Node]:
    """Return the scan of sysfs, the host's use of its links, and the node assembled from both and from the kernel's
    RDMA reports. `ignored` are process ids: a device that only such processes have open counts as unused."""
    found = scan(settings.sysfs_root, settings.dev_root, settings.proc_root)
    use = kernel.host_use(netdevs={name for names in found.netdev_names.values() for name in names})
    node = assemble(
        found,
        use,
        kernel.rdma_netdevs(),
        kernel.rdma_holders(),
        rdma_cgroup=has_rdma_controller(settings.cgroup_root),
        is_own_tree=is_own(settings.sysfs_root),
        ignored=ignored,
    )
    return found, use, node


def resolve_on_host(settings: Settings, known: Resolved) -> Resolved:
    """Return the devices in `known` with their present character devices, whose numbers change when a device moves
    between namespaces. Raises AttachError if a device no longer exists on the host."""
    now = read_char_devices(settings.sysfs_root, settings.dev_root, known.devices)
    gone = [device.name for device in known.devices if device.id not in now.by_device]
    if gone:
        raise AttachError(
            "the RDMA device is gone since its netdev left the host",
            device=", ".join(gone),
            where=str(settings.sysfs_root),
            hint="ask for mode: shared; soft RoCE devices cannot follow their netdev",
        )
    devices = tuple(replace(device, char_devices=now.by_device[device.id]) for device in known.devices)
    return Resolved(devices=devices, rdma_cm=now.rdma_cm, has_nodes=now.has_nodes)
