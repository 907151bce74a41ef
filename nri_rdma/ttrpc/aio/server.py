"""A ttrpc server for asyncio."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from ..endpoint import Endpoint, adopted, listen_unix, listens
from .calls import AsyncHandler, AsyncInterceptor, AsyncMethods, AsyncStreaming
from .connection import Limits, ServerLink

log = logging.getLogger(__name__)

_CUT_PATIENCE_S = 0.2


class AsyncServer:
    """A server of ttrpc methods in one event loop. `handlers` maps (full service name, method name) to a handler.

    A handler returns the payload of its answer, or raises. An RpcError is sent with its code and text; for other
    exceptions error.status_of() chooses the code. Each call is a task. The task is cancelled if the caller disconnects,
    and at the call's deadline; the caller then gets DEADLINE_EXCEEDED. Handlers must not close the server.

    max_calls is the maximum number of unary calls that run for one connection; further calls wait in its socket.
    max_streams is the maximum number of its streaming calls; a further call is refused. max_connections is the maximum
    number of connections; a further connection is closed.
    """

    def __init__(
        self,
        handlers: Mapping[tuple[str, str], AsyncHandler | AsyncStreaming],
        *,
        interceptors: Sequence[AsyncInterceptor] = (),
        max_connections: int = 16,
        max_calls: int = 64,
        max_streams: int = 64,
    ) -> None:
        self._methods = AsyncMethods(handlers, interceptors)
        self._max_connections = max_connections
        self._limits = Limits(max_calls=max_calls, max_streams=max_streams)
        self._connections: set[ServerLink] = set()
        self._endpoint: Endpoint | None = None
        self._listening: asyncio.Server | None = None
        self._closing = False
        self._idle = asyncio.Event()  # wakes wait(), which then checks again

    async def serve_unix(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Listen on a Unix socket, whose file has the mode before anyone can connect. Returns at once; the event loop
        serves until close().

        A socket file without a listener is replaced. Raises OSError: EADDRINUSE if another server listens there, EEXIST
        if the path is not a socket, or the error of bind.
        """
        self._raise_if_serving()
        await self._listen(listen_unix(os.fspath(path), mode))

    async def serve(self, given: socket.socket | int) -> None:
        """Serve a listening socket or a single connection. Returns at once; the event loop serves until close().

        `given` is a socket or its file descriptor; the server owns it from now on. Raises OSError if `given` is not a
        socket, or is neither listening nor connected.
        """
        owned = adopted(given)
        if listens(owned):
            self._raise_if_serving()
            await self._listen(Endpoint(owned))
        else:
            owned.getpeername()
            await asyncio.get_running_loop().connect_accepted_socket(self._accept, owned)

    async def wait(self) -> None:
        """Wait until close() is called. A server that only serves given connections also returns when they have
        ended."""
        while not self._closing and (self._listening is not None or self._connections):
            self._idle.clear()
            await self._idle.wait()

    async def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, refuse further calls, and wait up to grace_s seconds for the running calls. Then cancel the
        calls that still run."""
        self._closing = True
        self._idle.set()
        if self._listening is not None:
            self._listening.close()
        if self._endpoint is not None:
            self._endpoint.close()
        for connection in list(self._connections):
            connection.drain()
        await self._gone(grace_s)
        for connection in list(self._connections):
            connection.cut()
        await self._gone(_CUT_PATIENCE_S)
        for connection in self._connections:
            log.warning("a handler does not end", extra={"calls": connection.running})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    def _raise_if_serving(self) -> None:
        if self._endpoint is not None or self._closing:
            raise RuntimeError("an AsyncServer listens on one socket, once")

    async def _listen(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_unix_server(self._accept, sock=endpoint.listener)

    def _accept(self) -> ServerLink:
        return ServerLink(self._methods, self._limits, on_start=self._take, on_end=self._ended)

    def _take(self, connection: ServerLink) -> bool:
        if self._closing or len(self._connections) >= self._max_connections:
            log.warning("connection refused: too many are open", extra={"limit": self._max_connections})
            return False
        self._connections.add(connection)
        return True

    def _ended(self, connection: ServerLink) -> None:
        self._connections.discard(connection)
        self._idle.set()

    async def _gone(self, patience_s: float) -> None:
        """Wait up to patience_s seconds until all connections are closed and their calls have ended."""
        waits = [asyncio.ensure_future(connection.ended()) for connection in self._connections]
        if waits:
            _done, late = await asyncio.wait(waits, timeout=patience_s)
            for wait in late:
                wait.cancel()
