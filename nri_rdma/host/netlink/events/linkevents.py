"""Listens to the kernel's events about links, queueing disciplines, addresses and default routes of a namespace, and
reports them in bursts.

Another module (uevents) reports RDMA devices that come and go. This module watches the netdevs of RDMA devices: which
of them are on the host, and how the host uses them. A filter in the kernel drops events of routes that are not default
routes, because the routes of a router change by the thousand.
"""

from __future__ import annotations

import ctypes
import logging
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from nri_rdma.host.netlink.sockets.datagrams import Datagrams
from nri_rdma.model.usage import Change
from nri_rdma.tasks.burst import Burst
from nri_rdma.tasks.listeners import TURN_S, Listeners, Source
from nri_rdma.wire import WireError
from nri_rdma.wire.rtnetlink import DELROUTE, DST_LEN_AT, GROUPS, NEWROUTE, read_changes

log = logging.getLogger(__name__)

QUIET_S = 0.05
"""Seconds without an event after which a burst is over. A new link or bond causes a handful of events."""
PAUSE_S = 0.025
"""Seconds between two readings of events, during which events collect. The pause keeps this thread from competing for
the interpreter with the thread that causes the events, perhaps an attach of devices to a pod. The end of a burst is
noticed at most this much later."""
LATEST_S = 0.45
"""The longest time in seconds until a burst is reported, even if it goes on. The burst may come from an attach of
devices by this daemon: 16 netdevs take 0.3 s. Reading the node meanwhile would compete for the kernel's lock of all
links and show a half-done state."""
INTERVAL_S = 0.5
"""The shortest time in seconds between the starts of two readings of the node. Together with QUIET_S, LATEST_S and the
duration of a reading, it keeps the known state of the node less than a second old."""

_KERNEL = 0  # the port of the sender
_BUFFER_BYTES = 1 << 20
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE = 26, 33  # include/uapi/asm-generic/socket.h
_KIND_AT = 4
_LDH_ABS, _LDB_ABS, _JEQ, _RET = 0x28, 0x30, 0x15, 0x06  # include/uapi/linux/bpf_common.h
_INSTRUCTION = struct.Struct("=HBBI")


def open_link_socket() -> socket.socket:
    """Open a socket that receives link events of the calling thread's namespace. Raises OSError if the kernel
    refuses."""
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        _enlarge_buffer(opened)
        _keep_other_routes_away(opened)
        opened.bind((0, GROUPS))
    except OSError:
        opened.close()
        raise
    return opened


class LinkEvents:
    """Calls `on_change` after changes for which `matters` returns True, once per burst and at most twice a second. Lost
    events count as a change.

    `on_change` runs in the listening thread; if it raises, it is called again. `heard` is a socket of open_link_socket,
    which `close` closes.
    """

    def __init__(
        self,
        listeners: Listeners,
        heard: socket.socket,
        matters: Callable[[Change], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._socket, self._datagrams = heard, Datagrams(heard)
        self._matters, self._on_change = matters, on_change
        self._burst = Burst(quiet_s=QUIET_S, longest_s=LATEST_S, interval_s=INTERVAL_S)
        self._at_work = threading.Lock()
        self._closed = False
        self._listeners = listeners
        self._source = Source(
            name="link events",
            fd=heard.fileno(),
            read=self._read,
            due_at=lambda: self._burst.due_at,
            settle=self._settle,
            pause_s=PAUSE_S,
        )
        listeners.add(self._source)

    def is_all_told(self) -> bool:
        """Return whether `on_change` has been called for all events that the kernel has sent so far. Never blocks."""
        if not self._at_work.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._burst.due_at is None and not self._has_news()
        finally:
            self._at_work.release()

    def take_in(self) -> None:
        """Discard the pending events, because the caller is about to read the whole state. `on_change` is called only
        for later events."""
        with self._at_work:
            if not self._closed:
                self._take()
                self._burst.forget()

    def close(self) -> None:
        """Stop listening and close the socket. `is_all_told` returns False from then on."""
        self._listeners.remove(self._source)
        with self._at_work:
            self._closed = True
            self._socket.close()
            self._datagrams.close()

    def _read(self) -> None:
        with self._at_work:
            self._take()

    def _settle(self) -> None:
        """Call `on_change` if a burst is over. `is_all_told` returns False until the call has ended."""
        with self._at_work:
            if self._burst.take():
                try:
                    self._on_change()
                except BaseException:
                    self._burst.note()
                    raise

    def _has_news(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _take(self) -> None:
        """Read the pending events for at most TURN_S seconds, because a flood of events may last for hours."""
        until = time.monotonic() + TURN_S
        while time.monotonic() < until:
            try:
                data, sender = self._datagrams.receive()
                if sender == _KERNEL and any(self._matters(change) for change in read_changes(data)):
                    self._burst.note()
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS: more than the buffer holds
                log.warning("events of links were lost, rescanning the node", extra={"error": error.strerror})
                self._burst.note()
                return
            except WireError as error:
                log.debug("an event of a link cannot be read, rescanning the node", extra={"error": str(error)})
                self._burst.note()
            except BaseException:  # the events read so far may matter: is_all_told must be False
                self._burst.note()
                raise


def _enlarge_buffer(opened: socket.socket) -> None:
    """Enlarge the socket's receive buffer, beyond net.core.rmem_max if this process may. The usual buffer holds only
    180 link events, and the socket is not read during a pause."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN: lost events cause a rescan
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)


def _keep_other_routes_away(opened: socket.socket) -> None:
    """Attach a classic BPF filter to the socket that drops events of all routes except default routes (a prefix of 0
    bits).

    The filter loads numbers in network byte order, but the kernel's messages have the machine's byte order.
    """
    kinds = [socket.htons(kind) if sys.byteorder == "little" else kind for kind in (NEWROUTE, DELROUTE)]
    program = [
        (_LDH_ABS, 0, 0, _KIND_AT),
        (_JEQ, 1, 0, kinds[0]),
        (_JEQ, 0, 2, kinds[1]),
        (_LDB_ABS, 0, 0, DST_LEN_AT),
        (_JEQ, 0, 1, 0),
        (_RET, 0, 0, 0xFFFFFFFF),
        (_RET, 0, 0, 0),
    ]
    code = ctypes.create_string_buffer(b"".join(_INSTRUCTION.pack(*item) for item in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
