"""The serving end of ttrpc over a Unix socket, blocking.

One named thread accepts, one named thread serves each connection; calls of one connection are answered in the order
in which they came. close() ends and joins them all. Meant for a control socket: a few local callers, short answers.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nri_rdma.ttrpc.error import RpcError
from nri_rdma.wire.ttrpc import Code, Rejected, Request, ServerConnection

log = logging.getLogger(__name__)

_RECEIVE_SIZE = 64 << 10
_SEND_TIMEOUT_S = 10  # a caller that does not read its answer loses the connection


@dataclass(frozen=True, slots=True)
class Call:
    """What a handler gets: one call, its payload not decoded."""

    service: str
    method: str
    payload: bytes
    metadata: tuple[tuple[str, str], ...]
    deadline: float | None
    """time.monotonic() at which the caller stops waiting; None = it waits. The server leaves it to the handler."""


Handler = Callable[[Call], bytes]


class Server:
    """Answers calls with the handlers given: (full service name, method name) -> handler.

    A handler returns the payload of the answer; RpcError keeps its code and text, any other exception becomes UNKNOWN
    with the exception's text. It runs in its connection's thread and must not close the server.
    """

    def __init__(self, handlers: Mapping[tuple[str, str], Handler], *, max_connections: int = 16) -> None:
        self._handlers = dict(handlers)
        self._services = frozenset(service for service, _method in self._handlers)
        self._max_connections = max_connections
        self._lock = threading.Lock()  # guards the two below
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._closing = False
        self._endpoint: _Endpoint | None = None
        self._acceptor: threading.Thread | None = None

    def serve_unix(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Listen on path, with that mode from the first moment, and return; threads do the rest until close().

        A socket that nobody listens on any more is replaced. Raises OSError: EADDRINUSE when a server answers there,
        EEXIST when the path is no socket, and whatever the kernel says to bind.
        """
        if self._endpoint is not None or self._closing:
            raise RuntimeError("a Server serves one socket, once")
        self._endpoint = _Endpoint(os.fspath(path), mode)
        self._acceptor = threading.Thread(target=self._accept, args=(self._endpoint,), name="ttrpc-accept", daemon=True)
        self._acceptor.start()

    def wait(self) -> None:
        """Block until another thread calls close()."""
        if self._acceptor is not None:
            self._acceptor.join()

    def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, let handlers that run finish and answer for up to grace_s, then cut what is left.

        Joins every thread, except one whose handler still runs after that: it is named in the log.
        """
        with self._lock:
            self._closing = True
        if self._endpoint is not None:
            self._endpoint.wake()
        if self._acceptor is not None:
            self._acceptor.join()
        for how, patience_s in ((socket.SHUT_RD, grace_s), (socket.SHUT_RDWR, 0.2)):
            self._shut(how)
            deadline = time.monotonic() + patience_s
            for thread in self._threads():
                thread.join(max(0.0, deadline - time.monotonic()))
        for thread in self._threads():
            log.warning("a handler does not end", extra={"connection": thread.name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _accept(self, endpoint: _Endpoint) -> None:
        number = 0
        try:
            while (connection := endpoint.accept()) is not None:
                number += 1
                self._start(connection, f"ttrpc-{number}")
        finally:
            endpoint.close()

    def _start(self, connection: socket.socket, name: str) -> None:
        thread = threading.Thread(target=self._serve, args=(connection,), name=name, daemon=True)
        with self._lock:
            accepted = not self._closing and len(self._connections) < self._max_connections
            if accepted:
                self._connections[connection] = thread
                try:
                    thread.start()
                except RuntimeError:  # the system is out of threads
                    del self._connections[connection]
                    accepted = False
        if not accepted:
            log.warning("connection refused: too many are open", extra={"limit": self._max_connections})
            connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            _set_send_timeout(connection, _SEND_TIMEOUT_S)
            protocol = ServerConnection()
            while data := connection.recv(_RECEIVE_SIZE):
                protocol.receive_data(data)
                while (event := protocol.next_event()) is not None:
                    if isinstance(event, Request | Rejected):
                        connection.sendall(self._answer(protocol, event))
        except OSError as exc:
            log.debug("connection lost", extra={"error": str(exc)})
        finally:
            with self._lock:  # a number that close() may shut is never one the kernel has given to somebody else
                del self._connections[connection]
                connection.close()

    def _answer(self, protocol: ServerConnection, event: Request | Rejected) -> bytes:
        if isinstance(event, Rejected):
            return event.reply
        try:
            payload = self._handle(event)
        except RpcError as exc:
            return protocol.fail(event.stream_id, exc.code, exc.message)
        except Exception as exc:
            # The caller gets it; the other connections must not notice.
            log.exception("a handler failed", extra={"service": event.service, "method": event.method})
            return protocol.fail(event.stream_id, Code.UNKNOWN, str(exc) or type(exc).__name__)
        return protocol.respond(event.stream_id, payload)

    def _handle(self, request: Request) -> bytes:
        service, method = request.service, request.method
        handler = self._handlers.get((service, method))
        if handler is None:
            missing = f"method {method}" if service in self._services else f"service {service}"
            raise RpcError(Code.UNIMPLEMENTED, missing)
        deadline = time.monotonic() + request.timeout_ns / 1e9 if request.timeout_ns else None
        payload: object = handler(Call(service, method, request.payload, request.metadata, deadline))
        if not isinstance(payload, bytes):
            raise TypeError(f"handler of {service}/{method} returned {type(payload).__name__}, not bytes")
        return payload

    def _threads(self) -> list[threading.Thread]:
        with self._lock:
            return list(self._connections.values())

    def _shut(self, how: int) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # the caller was faster
                    connection.shutdown(how)


class _Endpoint:
    """The listening socket, its place in the file system, and a way to wake who waits at it."""

    def __init__(self, path: str, mode: int) -> None:
        _remove_stale(path)
        self._path = path
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.bind(path)
        except BaseException:
            self._listener.close()
            raise
        made = os.lstat(path)
        self._identity = made.st_dev, made.st_ino
        os.chmod(path, mode)  # noqa: PTH101 - before listen, so nobody can have connected under another mode
        self._listener.listen()
        self._listener.setblocking(False)
        self._waker, self._sleeper = socket.socketpair()

    def accept(self) -> socket.socket | None:
        """Return the next connection, or None after wake()."""
        poller = select.poll()
        poller.register(self._sleeper, select.POLLIN)
        poller.register(self._listener, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _events in poller.poll()}
            if self._sleeper.fileno() in ready:
                return None
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue
            except OSError as exc:
                log.warning("accept failed", extra={"error": str(exc)})  # out of descriptors: wait for some
                self._sleeper.settimeout(1.0)
                with contextlib.suppress(TimeoutError):
                    self._sleeper.recv(1, socket.MSG_PEEK)
                continue
            connection.setblocking(True)
            return connection

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # woken and closed before
            self._waker.send(b"x")

    def close(self) -> None:
        self._listener.close()
        self._waker.close()
        self._sleeper.close()
        with contextlib.suppress(OSError):
            found = os.lstat(self._path)
            if (found.st_dev, found.st_ino) == self._identity:  # never the socket of a successor
                os.unlink(self._path)  # noqa: PTH108 - the socket module takes strings


def _remove_stale(path: str) -> None:
    """Unlink a socket that refuses connections; anything else in the way is an OSError."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise FileExistsError(errno.EEXIST, "in the way of the socket, and not a socket", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)  # a full backlog blocks; it proves that somebody listens
        try:
            probe.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 - the socket module takes strings
            return
        except TimeoutError:
            pass
    raise OSError(errno.EADDRINUSE, "another server listens here", path)


def _set_send_timeout(connection: socket.socket, seconds: int) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@qq", seconds, 0))
