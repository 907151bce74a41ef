"""The types of an asyncio server's methods: what a handler gets and returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..calls import Call
from ..error import RpcError
from ..wire import Code


class AsyncStream(Protocol):
    """The messages of a streaming call, as its handler uses them. One task may receive; any task may send."""

    async def receive(self) -> bytes | None:
        """Return the caller's next message; None after the last one. A cancelled call loses no message.

        Raises RpcError with the stream's status if the stream ended early, and ConnectionClosed if the caller has
        disconnected.
        """

    async def send(self, payload: bytes) -> None:
        """Send a message to the caller. Waits while the caller does not read.

        Raises RpcError if the message is too long or the stream ended early, and ConnectionClosed if the caller has
        disconnected.
        """

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the caller's messages; ends after the last one."""


AsyncHandler = Callable[[Call], Awaitable[bytes]]
"""A coroutine function that answers a unary call. It is cancelled at the call's deadline, and if the caller
disconnects."""
AsyncStreamHandler = Callable[[Call, AsyncStream], Awaitable[bytes | None]]
"""A coroutine function that answers a streaming call. Returns the only answer, or None if it sent its messages with
`AsyncStream.send`."""
AsyncInterceptor = Callable[[Call, Callable[[Call], Awaitable[bytes | None]]], Awaitable[bytes | None]]
"""A coroutine function that wraps handlers. It gets the call and the next handler, and returns the result of that
handler, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStreaming:
    """A streaming method of a server. `client_streams` and `server_streams` say whether client and server may send any
    number of messages."""

    handler: AsyncStreamHandler
    client_streams: bool
    server_streams: bool


class AsyncMethods:
    """The handlers of a server's methods, and the interceptors that wrap each call."""

    def __init__(
        self,
        handlers: Mapping[tuple[str, str], AsyncHandler | AsyncStreaming],
        interceptors: Sequence[AsyncInterceptor],
    ) -> None:
        self._handlers = dict(handlers)
        self._services = frozenset(service for service, _method in self._handlers)
        self._interceptors = tuple(interceptors)

    def find(self, service: str, method: str) -> AsyncHandler | AsyncStreaming:
        """Return the method's handler. Raises RpcError with UNIMPLEMENTED if there is none."""
        handler = self._handlers.get((service, method))
        if handler is None:
            missing = f"method {method}" if service in self._services else f"service {service}"
            raise RpcError(Code.UNIMPLEMENTED, missing)
        return handler

    def run(self, call: Call, handler: Callable[[Call], Awaitable[bytes | None]]) -> Awaitable[bytes | None]:
        """Call the handler through all interceptors, the first one outermost, and return the result."""
        return self._through(0, call, handler) if self._interceptors else handler(call)

    def _through(
        self, position: int, call: Call, handler: Callable[[Call], Awaitable[bytes | None]]
    ) -> Awaitable[bytes | None]:
        if position == len(self._interceptors):
            return handler(call)
        return self._interceptors[position](call, lambda inner: self._through(position + 1, inner, handler))
