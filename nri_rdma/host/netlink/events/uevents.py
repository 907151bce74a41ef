"""Listens to the kernel's uevents about RDMA devices.

The kernel announces an RDMA device (class infiniband) only in the device's own network namespace, but its character
devices (classes infiniband_verbs and infiniband_mad) in all namespaces. The host therefore notices the move of a device
into a pod by its character devices, which the kernel creates anew. `rdma monitor` does not report such a move (seen
with Linux 7.2).
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from nri_rdma.host.kernel_file import read_text
from nri_rdma.tasks.burst import Burst
from nri_rdma.tasks.listeners import TURN_S, Listeners, Source
from nri_rdma.wire import WireError
from nri_rdma.wire.uevent import Uevent, read_uevent

log = logging.getLogger(__name__)

RDMA_SUBSYSTEMS = frozenset({"infiniband", "infiniband_verbs", "infiniband_mad"})
QUIET_S = 0.05
"""Seconds without an event after which a burst is over. A device that appears or moves causes a handful of events."""

_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h
_KERNEL_GROUP = 1  # udev's own is 2
_KERNEL = 0  # the sender's port: processes with CAP_NET_ADMIN can send, too
_DATAGRAM_MAX = 8192  # UEVENT_BUFFER_SIZE is 2048
_BUFFER_BYTES = 1 << 20
_SEQUENCE = "/sys/kernel/uevent_seqnum"


def last_sequence() -> int:
    """Return the sequence number of this machine's newest uevent; 0 if the kernel does not provide it."""
    try:
        return int(read_text(_SEQUENCE))
    except (OSError, ValueError):
        return 0


class RdmaUevents:
    """Calls `on_event` for each uevent of an RDMA device, and `on_quiet` after each burst of uevents. Both run in the
    listening thread. After a loss of events, it calls `on_lost` and then `on_quiet`.

    Create it in the host's network namespace. The constructor raises OSError if the kernel refuses the socket.
    """

    def __init__(
        self,
        listeners: Listeners,
        on_event: Callable[[Uevent], None],
        on_lost: Callable[[], None],
        on_quiet: Callable[[], None],
        *,
        subsystems: frozenset[str] = RDMA_SUBSYSTEMS,
    ) -> None:
        self._subsystems = subsystems
        self._on_event, self._on_lost, self._on_quiet = on_event, on_lost, on_quiet
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, _NETLINK_KOBJECT_UEVENT
        )
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _KERNEL_GROUP))
        self._burst = Burst(quiet_s=QUIET_S)  # other devices' events do not make it longer
        self._listeners = listeners
        self._source = Source(
            name="uevents",
            fd=self._socket.fileno(),
            read=self._take,
            due_at=lambda: self._burst.due_at,
            settle=self._settle,
        )
        listeners.add(self._source)

    def close(self) -> None:
        """Stop listening and close the socket."""
        self._listeners.remove(self._source)
        self._socket.close()

    def _settle(self) -> None:
        if self._burst.take():
            self._on_quiet()

    def _take(self) -> None:
        """Read pending uevents for at most TURN_S seconds, and call `on_event` for those of RDMA devices."""
        until = time.monotonic() + TURN_S
        while time.monotonic() < until:
            try:
                data, (sender, _groups) = self._socket.recvfrom(_DATAGRAM_MAX)
                if sender != _KERNEL:
                    continue
                event = read_uevent(data)
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS: more than the buffer holds
                log.warning("device events were lost, rescanning the devices", extra={"error": error.strerror})
                self._burst.note()
                self._on_lost()
                return
            except WireError as error:
                log.warning("a device event cannot be read", extra={"error": str(error)})
                continue
            if event.subsystem in self._subsystems:
                self._burst.note()  # before the callback, which may fail
                self._on_event(event)
