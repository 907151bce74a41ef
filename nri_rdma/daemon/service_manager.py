"""Reports to the service manager that started the daemon, as systemd's sd_notify(3) defines it.

A report is one datagram to the socket in $NOTIFY_SOCKET. docs/adr/0027 says when the daemon counts as ready.
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
"""Time in seconds after which the daemon counts as ready even if the runtime has not listed its pods.

Units that wait for the daemon must start even on a node whose runtime starts later.
"""

_SEND_S = 1.0
"""How long a report waits, in seconds, for a service manager that does not read its socket. After that the report is
dropped."""


class ServiceManager:
    """Sends READY=1 and STOPPING=1 to the service manager, each at most once. Thread-safe.

    `address` is the value of $NOTIFY_SOCKET; with "" nothing is sent.
    """

    def __init__(self, address: str, schedule: Schedule = start_timer) -> None:
        self._address = address
        self._schedule = schedule
        self._lock = threading.Lock()
        self._is_ready = not address
        self._is_stopping = not address

    def serving(self, *, alone: bool = False) -> None:
        """Schedule the report READY=1 for READY_WITHIN_S from now; `ready` may send it earlier.

        With `alone` the report is sent at once, because there is no runtime whose list of pods is awaited.
        """
        if alone:
            self.ready()
        elif self._address:
            self._schedule(READY_WITHIN_S, self.ready)

    def ready(self) -> None:
        """Report READY=1 to the service manager, unless READY=1 or STOPPING=1 was sent before."""
        with self._lock:
            first, self._is_ready = not self._is_ready, True
        if first:
            self._send(b"READY=1")

    def stopping(self) -> None:
        """Report STOPPING=1 to the service manager, unless it was sent before. READY=1 is not sent after it."""
        with self._lock:
            first, self._is_stopping = not self._is_stopping, True
            self._is_ready = True  # READY=1 must not follow
        if first:
            self._send(b"STOPPING=1")

    def _send(self, state: bytes) -> None:
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as opened:
                opened.settimeout(_SEND_S)
                opened.sendto(state, address)
        except OSError as error:  # the daemon goes on; systemd ends it if READY=1 is missing
            log.warning("the service manager cannot be told", extra={"state": state.decode(), "error": str(error)})
