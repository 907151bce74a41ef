"""The kernel's uevents about RDMA devices, as a stream.

RDMA devices themselves (class infiniband) are told in their own network namespace only, their character devices
(classes infiniband_verbs and infiniband_mad) in every one: a device that moves into a pod is seen from the host by its
nodes, which the kernel makes anew. `rdma monitor` is silent about such a move (seen with Linux 7.2).
"""

from __future__ import annotations

import logging
import math
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nri_rdma.wire import WireError
from nri_rdma.wire.uevent import Uevent, read_uevent

log = logging.getLogger(__name__)

RDMA_SUBSYSTEMS = frozenset({"infiniband", "infiniband_verbs", "infiniband_mad"})
QUIET_S = 0.05
"""A device that comes or moves makes a handful of events; they are over when so much time passes without another."""

_NETLINK_KOBJECT_UEVENT = 15  # include/uapi/linux/netlink.h
_KERNEL_GROUP = 1  # udev's own is 2
_KERNEL = 0  # the port of the sender: others may send to us, given CAP_NET_ADMIN
_DATAGRAM_MAX = 8192  # UEVENT_BUFFER_SIZE is 2048
_BUFFER_BYTES = 1 << 20
_SEQUENCE = Path("/sys/kernel/uevent_seqnum")


def last_sequence() -> int:
    """The number of the newest event of this machine; 0 where the kernel does not tell."""
    try:
        return int(_SEQUENCE.read_text())
    except (OSError, ValueError):
        return 0


class RdmaUevents:
    """Calls `on_event` for each event of an RDMA device and `on_quiet` after each burst, in a thread of its own.

    When events were lost, `on_quiet` is called all the same, and `on_lost` before. `close` joins the thread. To be made
    in the host's network namespace. Raises OSError.
    """

    def __init__(
        self,
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
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._quiet_at: float | None = None  # when the burst that is under way will be over
        self._thread = threading.Thread(target=self._serve, name="uevents", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End and join the thread."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._socket.close()
        for fd in (self._wake_read, self._wake_write):
            os.close(fd)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while True:
            ready = poll.poll(self._patience_ms())
            if any(fd == self._wake_read for fd, _ in ready):
                return
            try:
                if ready:
                    self._take()
                if self._quiet_at is not None and time.monotonic() >= self._quiet_at:
                    self._quiet_at = None
                    self._on_quiet()
            except Exception:  # the next event must not be lost to what this one's listener did
                log.exception("uevents")

    def _patience_ms(self) -> int | None:
        """Until the burst is over; for ever when there is none. Other devices' events do not make it longer."""
        if self._quiet_at is None:
            return None
        return max(0, math.ceil((self._quiet_at - time.monotonic()) * 1000))

    def _take(self) -> None:
        """Hand on what there is."""
        while True:
            try:
                data, (sender, _groups) = self._socket.recvfrom(_DATAGRAM_MAX)
                if sender != _KERNEL:
                    continue
                event = read_uevent(data)
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS: more than the buffer holds
                log.warning("device events were lost, looking at all", extra={"error": error.strerror})
                self._quiet_at = time.monotonic() + QUIET_S
                self._on_lost()
                return
            except WireError as error:
                log.warning("a device event cannot be read", extra={"error": str(error)})
                continue
            if event.subsystem in self._subsystems:
                self._quiet_at = time.monotonic() + QUIET_S  # before the listener, which may fail
                self._on_event(event)
