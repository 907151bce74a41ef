"""A blocking ttrpc server.

One thread accepts connections; each connection has its own threads (connection.py). close() ends and joins all of them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from .calls import Handler, Interceptor, Methods, Streaming
from .connection import Connection
from .endpoint import Endpoint, adopted, listen_unix, listens

log = logging.getLogger(__name__)

_CUT_PATIENCE_S = 0.2


class Server:
    """A server of ttrpc methods. `handlers` maps (full service name, method name) to a handler.

    A handler returns the payload of its answer, or raises. An RpcError is sent with its code and text; for other
    exceptions error.status_of() chooses the code. Handlers of one connection run at the same time, unless max_calls is
    1: then its calls are answered one after the other. Handlers must not close the server.

    max_calls is the maximum number of unary calls that run for one connection; further calls wait in its socket.
    max_streams is the maximum number of its streaming calls; a further call is refused. max_connections is the maximum
    number of connections; a further connection is closed.
    """

    def __init__(
        self,
        handlers: Mapping[tuple[str, str], Handler | Streaming],
        *,
        interceptors: Sequence[Interceptor] = (),
        max_connections: int = 16,
        max_calls: int = 16,
        max_streams: int = 16,
    ) -> None:
        if min(max_connections, max_calls, max_streams) < 1:
            raise ValueError("a Server needs room for one connection, one call and one stream at least")
        self._methods = Methods(handlers, interceptors)
        self._max_connections = max_connections
        self._max_calls = max_calls
        self._max_streams = max_streams
        self._changed = threading.Condition()  # guards all below
        self._connections: set[Connection] = set()
        self._accepted = 0
        self._closing = False
        self._endpoint: Endpoint | None = None
        self._acceptor: threading.Thread | None = None

    def serve_unix(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Listen on a Unix socket, whose file has the mode before anyone can connect. Returns at once; threads serve
        until close().

        A socket file without a listener is replaced. Raises OSError: EADDRINUSE if another server listens there, EEXIST
        if the path is not a socket, or the error of bind.
        """
        self._raise_if_serving()
        self._listen(listen_unix(os.fspath(path), mode))

    def serve(self, given: socket.socket | int) -> None:
        """Serve a listening socket or a single connection. Returns at once; threads serve until close().

        `given` is a socket or its file descriptor; the server owns it from now on. Raises OSError if `given` is not a
        socket, or is neither listening nor connected.
        """
        owned = adopted(given)
        if listens(owned):
            self._raise_if_serving()
            self._listen(Endpoint(owned))
        else:
            owned.getpeername()
            self._take(owned)

    def wait(self) -> None:
        """Block until another thread calls close(). A server that only serves given connections also returns when they
        have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not (self._acceptor or self._connections))

    def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, refuse further calls, and wait up to grace_s seconds for the running calls. Then cut all
        connections.

        Joins every thread. A thread whose handler still runs is named in the log instead.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._endpoint is not None:
            self._endpoint.wake()
        if self._acceptor is not None:
            self._acceptor.join()
        for connection in self._open_connections():
            connection.drain()
        self._join(grace_s)
        for connection in self._open_connections():
            connection.cut()
        self._join(_CUT_PATIENCE_S)
        for thread in self._threads():
            log.warning("a handler does not end", extra={"connection": thread.name})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _raise_if_serving(self) -> None:
        if self._endpoint is not None or self._closing:
            raise RuntimeError("a Server listens on one socket, once")

    def _listen(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._acceptor = threading.Thread(target=self._accept, args=(endpoint,), name="ttrpc-accept", daemon=True)
        self._acceptor.start()

    def _accept(self, endpoint: Endpoint) -> None:
        try:
            while (connection := endpoint.accept()) is not None:
                self._take(connection)
        finally:
            endpoint.close()

    def _take(self, connection: socket.socket) -> None:
        with self._changed:
            if self._closing or len(self._connections) >= self._max_connections:
                log.warning("connection refused: too many are open", extra={"limit": self._max_connections})
                connection.close()
                return
            self._accepted += 1
            made = Connection(
                connection,
                self._methods,
                name=f"ttrpc-{self._accepted}",
                max_calls=self._max_calls,
                max_streams=self._max_streams,
                on_end=self._ended,
            )
            self._connections.add(made)
        try:
            made.start()
        except (OSError, RuntimeError) as exc:
            log.warning("connection refused", extra={"error": str(exc)})
            connection.close()
            self._ended(made)

    def _ended(self, connection: Connection) -> None:
        with self._changed:
            self._connections.discard(connection)
            self._changed.notify_all()

    def _open_connections(self) -> list[Connection]:
        with self._changed:
            return list(self._connections)

    def _threads(self) -> list[threading.Thread]:
        return [thread for connection in self._open_connections() for thread in connection.threads()]

    def _join(self, patience_s: float) -> None:
        """Wait up to `patience_s` seconds for the threads of all connections, including threads that start
        meanwhile."""
        deadline = time.monotonic() + patience_s
        while (threads := self._threads()) and time.monotonic() < deadline:
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
