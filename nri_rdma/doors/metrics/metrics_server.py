"""Serves the metrics pages over HTTP in a thread of its own. Clients cannot delay pods.

Anybody may reach the port, so there are limits. There are at most MAX_CLIENTS connections; a further connection closes
the oldest. A connection ends after PATIENCE_S. All requests for a page in one turn of the loop get equal bytes. After
each turn the thread sleeps nine times as long as the turn took, so it uses at most a tenth of a processor. If the
address is in use, the thread tries again later.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final

from nri_rdma.doors.metrics.http import BadRequestError, PageAnswer, PageRequest, read_request, written
from nri_rdma.model.listen_address import ListenAddress

log = logging.getLogger(__name__)

MAX_CLIENTS: Final = 32
"""Maximum number of connections. A scrape takes milliseconds."""
PATIENCE_S: Final = 5.0
"""Maximum duration of a connection in seconds. Prometheus itself gives up after ten."""
TRY_AGAIN_S: Final = 5.0
"""Pause before the next attempt to listen on an address that was not available."""
SETTLE_S: Final = 0.5
"""Pause between two calls of `settle`, which counts the durations noted so far, while no client asks."""
_REST = 9
_LONGEST_REST_S: Final = 1.0
_BACKLOG: Final = 1024
_ACCEPTED: Final = 64
"""Maximum number of connections that one turn of the server's loop accepts."""
_NOT_AT_ALL: Final = struct.pack("ii", 1, 0)  # struct linger
_PIECE: Final = 16 << 10
"""Maximum number of bytes that one turn of the server's loop reads from one client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsView:
    """The address of the pages, and the reason why they are not served ("" while they are)."""

    address: str
    error: str


class MetricsServer:
    """An HTTP server for the metrics pages, which runs from `start` to `close`."""

    def __init__(
        self, address: ListenAddress, answer: Callable[[PageRequest], PageAnswer], settle: Callable[[], None]
    ) -> None:
        """`answer` makes a page. `settle` counts the durations that were noted since its last call, and is called at
        least every SETTLE_S. Only this server's thread calls them."""
        self._address = address
        self._answer = answer
        self._settle = settle
        self._error = ""
        self._closing = threading.Event()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._listening: socket.socket | None = None
        self._clients: dict[int, _Client] = {}
        """The open connections by file descriptor, oldest first."""
        self._pages: dict[PageRequest, bytes] = {}
        """The answers made in this turn of the loop, by request."""
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)

    def start(self) -> None:
        """Listen, and start the thread. Returns at once."""
        self._listen()
        self._thread.start()

    def view(self) -> MetricsView:
        """Return the address, and the reason why nothing is served there ("": it is served)."""
        return MetricsView(address=str(self._address), error=self._error)

    def close(self) -> None:
        """End all connections and the thread. Calling it twice is allowed."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.ident is not None:
            self._thread.join()
        for client in self._clients.values():
            client.close()
        if self._listening is not None:
            self._listening.close()
        os.close(self._wake)

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        due = time.monotonic() + TRY_AGAIN_S
        while not self._closing.is_set():
            if self._listening is None and time.monotonic() >= due:
                self._listen()
                due = time.monotonic() + TRY_AGAIN_S
            ready = self._wait()
            began = time.monotonic()
            self._turn(ready, began)
            self._closing.wait(min(_LONGEST_REST_S, _REST * (time.monotonic() - began)))

    def _listen(self) -> None:
        try:
            self._listening = _listening_at(self._address)
        except OSError as error:
            why = f"{self._address}: {error.strerror or error}"
            if why != self._error:
                next_step = "the daemon tries again; free the address, or set another metrics_address"
                log.warning("metrics are not served", extra={"error": why, "next": next_step})
            self._error = why
        else:
            self._error = ""
            log.info("metrics are served", extra={"address": str(self._address)})

    def _wait(self) -> dict[int, int]:
        """Wait for events for at most SETTLE_S, and return the poll events by file descriptor."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if self._listening is not None:
            poll.register(self._listening, select.POLLIN)
        for descriptor, client in self._clients.items():
            poll.register(descriptor, client.waits_for)
        return dict(poll.poll(SETTLE_S * 1000))

    def _turn(self, ready: dict[int, int], now: float) -> None:
        self._pages.clear()
        try:
            self._settle()
        except Exception:  # the page must still be served with the other values
            log.exception("bug in the counting for the metrics")
        for descriptor, client in tuple(self._clients.items()):
            if descriptor in ready:
                client.turn(self._answered)
            if client.is_over or now >= client.by:
                self._clients.pop(descriptor).close()
        if self._listening is not None and self._listening.fileno() in ready:
            self._accept(self._listening)

    def _accept(self, listening: socket.socket) -> None:
        """Accept waiting connections and answer the requests that have already arrived. At MAX_CLIENTS, close the
        oldest connection."""
        for _ in range(_ACCEPTED):
            try:
                connection, _ = listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # no descriptor is left: poll would report this client again at once
                log.debug("a client of the metrics was not accepted", extra={"error": str(error)})
                self._closing.wait(_LONGEST_REST_S)
                return
            connection.setblocking(False)
            if len(self._clients) >= MAX_CLIENTS:
                self._clients.pop(next(iter(self._clients))).close()
            client = self._clients[connection.fileno()] = _Client(connection, time.monotonic() + PATIENCE_S)
            client.turn(self._answered)

    def _answered(self, received: bytearray) -> bytes:
        """Return the bytes of the answer to the received bytes; b"" while the request is incomplete."""
        try:
            request = read_request(received)
            if request is None:
                return b""
            if request not in self._pages:
                self._pages[request] = written(self._answer(request), is_head=request.is_head)
            return self._pages[request]
        except BadRequestError as error:
            return written(error.answer)
        except Exception:
            log.exception("bug in a page of metrics")
            return written(PageAnswer(status=500, body=b"the daemon's log has the reason\n"))


class _Client:
    """One connection: reads a request, writes its answer, and then discards bytes until the client closes.

    If we closed first, a client with unread bytes could lose the answer to a TCP reset.
    """

    def __init__(self, connection: socket.socket, by: float) -> None:
        self._connection = connection
        self._received = bytearray()
        self._answer: memoryview | None = None
        self.by = by
        """The time at which the connection is closed even if it is still in use, in seconds of `time.monotonic`."""
        self.is_over = False

    @property
    def waits_for(self) -> int:
        """Return the poll events that this connection waits for."""
        return select.POLLOUT if self._answer else select.POLLIN

    def turn(self, answered: Callable[[bytearray], bytes]) -> None:
        """Read or write as much as possible without blocking."""
        with suppress(BlockingIOError):
            try:
                if self._answer is None:
                    self._read(answered)
                if self._answer:
                    self._write(self._answer)
                elif self._answer is not None:
                    self._pass_over()
            except BlockingIOError:
                raise
            except OSError:  # the client has closed its connection
                self.is_over = True

    def close(self) -> None:
        """Close the connection. An answer that is only partly sent is discarded, so that the kernel keeps no buffer for
        it."""
        if self._answer:
            with suppress(OSError):
                self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NOT_AT_ALL)
        self._connection.close()

    def _read(self, answered: Callable[[bytearray], bytes]) -> None:
        data = self._connection.recv(_PIECE)
        self._received += data
        answer = answered(self._received)
        if answer:
            self._answer = memoryview(answer)
            self._received.clear()
        elif not data:
            self.is_over = True

    def _write(self, answer: memoryview) -> None:
        self._answer = answer[self._connection.send(answer) :]
        if not self._answer:
            self._connection.shutdown(socket.SHUT_WR)

    def _pass_over(self) -> None:
        self.is_over = not self._connection.recv(_PIECE)


def _listening_at(address: ListenAddress) -> socket.socket:
    """Return a socket that listens on the address. Raises OSError if the address is in use or not of this host."""
    is_six = isinstance(address.address, IPv6Address)
    made = socket.socket(socket.AF_INET6 if is_six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of an ended daemon block the port
        if is_six:  # [::] serves IPv4 clients, too, whatever net.ipv6.bindv6only says
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not address.address.is_unspecified))
        made.bind((str(address.address), address.port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made
