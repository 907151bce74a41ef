"""The serving end of ttrpc, in an event loop."""

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
    """Answers calls with the handlers given: (full service name, method name) -> handler. Lives in one loop.

    A handler returns the payload of the answer; RpcError keeps its code and text, any other exception becomes the code
    that error.status_of() finds, with the exception's text. Each call is a task: cancelled at the call's deadline,
    which answers DEADLINE_EXCEEDED, and when its caller has gone. Handlers must not close the server.

    max_calls bounds the unary calls of one connection that run at once (the next ones wait, in the caller's socket),
    max_streams its calls of messages (the next one is refused), max_connections the connections (the next is closed).
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
        self._idle = asyncio.Event()  # set when nobody can call any more

    async def serve_unix(self, path: str | os.PathLike[str], mode: int = 0o600) -> None:
        """Listen on path, with that mode from the first moment, and return; the loop does the rest until close().

        A socket without a listener is replaced. Raises OSError: EADDRINUSE when a server answers there, EEXIST when the
        path is no socket, and whatever the kernel says to bind.
        """
        self._raise_if_serving()
        await self._listen(listen_unix(os.fspath(path), mode))

    async def serve(self, given: socket.socket | int) -> None:
        """Serve a socket that listens, or one connection: the socket or its number, which is then the server's.

        Returns at once; the loop does the rest until close(). Raises OSError when it is no socket or not connected.
        """
        owned = adopted(given)
        if listens(owned):
            self._raise_if_serving()
            await self._listen(Endpoint(owned))
        else:
            owned.getpeername()
            await asyncio.get_running_loop().connect_accepted_socket(self._accept, owned)

    async def wait(self) -> None:
        """Wait until close() is called, or until nobody can call any more: a server that does not listen, and whose
        connections have ended."""
        while not self._closing and (self._listening is not None or self._connections):
            self._idle.clear()
            await self._idle.wait()

    async def close(self, grace_s: float = 2.0) -> None:
        """Stop listening, refuse further calls, let those that run finish for up to grace_s, then cancel the rest."""
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
        """Wait for the end of all connections and of their calls."""
        waits = [asyncio.ensure_future(connection.ended()) for connection in self._connections]
        if waits:
            _done, late = await asyncio.wait(waits, timeout=patience_s)
            for wait in late:
                wait.cancel()
