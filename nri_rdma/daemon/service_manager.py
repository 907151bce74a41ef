"""Reports to the service manager that started the daemon, as systemd's sd_notify(3) defines it.

A report is one datagram to the socket in $NOTIFY_SOCKET. When the daemon counts as ready: docs/adr/0027.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Final

from nri_rdma.attach.timers import Schedule, start_timer

log = logging.getLogger(__name__)

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"

READY_WITHIN_S = 10.0
"""When the runtime has not reported its pods by then, the daemon counts as ready all the same: units that wait for the
daemon must start on a node whose runtime starts later."""

_SEND_S = 1.0
"""Longest wait for a service manager that does not read; after that the report is dropped."""


class ServiceManager:
    """Sends READY=1 and STOPPING=1, each once at most. Safe for use by several threads.

    `address` is the value of $NOTIFY_SOCKET; without one nothing is sent.
    """

    def __init__(self, address: str, schedule: Schedule = start_timer) -> None:
        self._address = address
        self._schedule = schedule
        self._lock = threading.Lock()
        self._is_ready = not address
        self._is_stopping = not address

    def serving(self, *, alone: bool = False) -> None:
        """Announce that the daemon serves: it will be ready when the runtime has reported its pods, and after
        READY_WITHIN_S at the latest; at once where there is no runtime that would (`alone`)."""
        if alone:
            self.ready()
        elif self._address:
            self._schedule(READY_WITHIN_S, self.ready)

    def ready(self) -> None:
        """Report that the daemon is ready."""
        with self._lock:
            first, self._is_ready = not self._is_ready, True
        if first:
            self._send(b"READY=1")

    def stopping(self) -> None:
        """Report that the daemon is about to end."""
        with self._lock:
            first, self._is_stopping = not self._is_stopping, True
            self._is_ready = True  # too late for that report
        if first:
            self._send(b"STOPPING=1")

    def _send(self, state: bytes) -> None:
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
                opened.settimeout(_SEND_S)
                opened.sendto(state, address)
        except OSError as error:  # the daemon serves all the same; systemd ends it when READY=1 does not come
            log.warning("the service manager cannot be told", extra={"state": state.decode(), "error": str(error)})
