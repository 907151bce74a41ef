"""The kernel's news about links, addresses and default routes of a namespace, as a stream that is read in bursts.

RDMA devices that come and go are told by uevents (host/netlink/uevents.py); this is about their netdevs: which of them
are on the host, and what the host does with them. Routes but default ones are kept away by a filter in the kernel: a
router's change by the thousand.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from nri_rdma.host.netlink.datagrams import Datagrams
from nri_rdma.host.netlink.pace import Pace
from nri_rdma.model.usage import Change
from nri_rdma.wire import WireError
from nri_rdma.wire.rtnetlink import DELROUTE, DST_LEN_AT, GROUPS, NEWROUTE, read_changes

log = logging.getLogger(__name__)

_KERNEL = 0  # the port of the sender
_BUFFER_BYTES = 1 << 20
_SO_ATTACH_FILTER = 26  # include/uapi/asm-generic/socket.h
_KIND_AT = 4
_LDH_ABS, _LDB_ABS, _JEQ, _RET = 0x28, 0x30, 0x15, 0x06  # include/uapi/linux/bpf_common.h
_INSTRUCTION = struct.Struct("=HBBI")


def open_link_socket() -> socket.socket:
    """A socket that hears of the namespace of the calling thread. Raises OSError."""
    opened = socket.socket(
        socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
    )
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        _keep_other_routes_away(opened)
        opened.bind((0, GROUPS))
    except OSError:
        opened.close()
        raise
    return opened


class LinkEvents:
    """Calls `on_change` after changes that matter, once for a burst and at most twice a second, in a thread of its own.

    `matters` is asked about each change. When news were lost, `on_change` is called all the same. Owns `heard`, a
    socket of open_link_socket; `close` joins the thread.
    """

    def __init__(self, heard: socket.socket, matters: Callable[[Change], bool], on_change: Callable[[], None]) -> None:
        self._socket, self._datagrams = heard, Datagrams(heard)
        self._matters, self._on_change = matters, on_change
        self._pace = Pace()
        self._at_work = threading.Lock()
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="link-events", daemon=True)
        self._thread.start()

    def is_all_told(self) -> bool:
        """Whether `on_change` has been called for all that the kernel has told so far. Never blocks."""
        if not self._at_work.acquire(blocking=False):
            return False
        try:
            return not self._closed and self._pace.due_at is None and not self._has_news()
        finally:
            self._at_work.release()

    def take_in(self) -> None:
        """Who calls looks at everything now: `on_change` is called for what the kernel tells from here on."""
        with self._at_work:
            if not self._closed:
                self._take()
                self._pace.forget()

    def close(self) -> None:
        """End and join the thread. From then on nothing is known to be told."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._at_work:
            self._closed = True
            self._socket.close()
            self._datagrams.close()
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
                with self._at_work:
                    if ready:
                        self._take()
                    if self._pace.take(time.monotonic()):
                        self._on_change()
            except Exception:  # the next change must not be lost to what this one's listener did
                log.exception("link events")

    def _has_news(self) -> bool:
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(0))

    def _patience_ms(self) -> int | None:
        due_at = self._pace.due_at
        return None if due_at is None else max(0, math.ceil((due_at - time.monotonic()) * 1000))

    def _take(self) -> None:
        """Note what there is. Within a flood the time is looked at again and again: it may be over only in hours."""
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            try:
                data, sender = self._datagrams.receive()
                if sender == _KERNEL and any(self._matters(change) for change in read_changes(data)):
                    self._pace.note(time.monotonic())
            except BlockingIOError:
                return
            except OSError as error:  # ENOBUFS: more than the buffer holds
                log.warning("news of links were lost, reading the node anew", extra={"error": error.strerror})
                self._pace.note(time.monotonic())
                return
            except WireError as error:
                log.debug("news of a link cannot be read, rescanning the node", extra={"error": str(error)})
                self._pace.note(time.monotonic())


def _keep_other_routes_away(opened: socket.socket) -> None:
    """A classic BPF program: routes pass only with a prefix of 0 bits, all else passes. It loads numbers in network
    order, and the kernel's messages are in the machine's."""
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
