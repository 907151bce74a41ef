"""The serving end of ttrpc, blocking.

One named thread accepts; each connection has threads of its own (connection.py). close() ends and joins them all.
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
    """Answers calls with the handlers given: (full service name, method name) -> handler.

    A handler returns the payload of the answer; RpcError keeps its code and text, any other exception becomes the code
    that error.status_of() finds, with the exception's text. Several run at once, on one connection too, unless
    max_calls is 1: then a connection's calls are answered one after the other. Handlers must not close the server.

    max_calls bounds the unary calls of one connection that run at once (the next ones wait, in the caller's socket),
    max_streams its calls of messages (the next one is refused), max_connections the connections (the next is closed).
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
        """Listen on path, with that mode from the first moment, and return; threads do the rest until close().

        A socket without a listener is replaced. Raises OSError: EADDRINUSE when a server answers there, EEXIST when the
        path is no socket, and whatever the kernel says to bind.
        """
        self._raise_if_serving()
        self._listen(listen_unix(os.fspath(path), mode))

    def serve(self, given: socket.socket | int) -> None:
        """Serve a socket that listens, or one connection: the socket or its number, which is then the server's.

        Returns at once; threads do the rest until close(). Raises OSError when it is no socket or not connected.
        """
        owned = adopted(given)
        if listens(owned):
            self._raise_if_serving()
            self._listen(Endpoint(owned))
        else:
            owned.getpeername()
            self._take(owned)

    def wait(self) -> None:
        """Block until another thread calls close(), or until nobody can call any more: a server that does not listen,
        and whose connections have ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or not (self._acceptor or self._connections))

    def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, refuse further calls, let those that run finish for up to grace_s, then cut what is left.

        Joins every thread, except one whose handler still runs after that: it is named in the log.
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
        """Wait for the threads of all connections, and for those that are still starting."""
        deadline = time.monotonic() + patience_s
        while (threads := self._threads()) and time.monotonic() < deadline:
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
