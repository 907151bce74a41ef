"""The handlers of an asyncio server, and their arguments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..calls import Call
from ..error import RpcError
from ..wire import Code


class AsyncStream(Protocol):
    """The messages of one call, as its handler sees them. One task receives; any may send."""

    async def receive(self) -> bytes | None:
        """Return the caller's next message, or None when it will send no more. Cancelling it loses no message.

        Raises RpcError with the status that ended the stream early, ConnectionClosed when the caller has gone.
        """

    async def send(self, payload: bytes) -> None:
        """Send a message to the caller; waits while it does not read. Raises RpcError for one that is too long and for
        a stream that ended early, ConnectionClosed."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the caller's messages until the caller sends no more."""


AsyncHandler = Callable[[Call], Awaitable[bytes]]
"""Answers a unary call. Cancelled at the call's deadline, and when the caller has gone."""
AsyncStreamHandler = Callable[[Call, AsyncStream], Awaitable[bytes | None]]
"""Answers a call of messages: returns the one answer, or None after the last of several."""
AsyncInterceptor = Callable[[Call, Callable[[Call], Awaitable[bytes | None]]], Awaitable[bytes | None]]
"""Wraps a handler: gets the call and the handler (or the next interceptor), returns what that returns, or raises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncStreaming:
    """A method with messages: whether the caller sends any number, and whether it gets any number."""

    handler: AsyncStreamHandler
    client_streams: bool
    server_streams: bool


class AsyncMethods:
    """The methods of a server, behind its interceptors."""

    def __init__(
        self,
        handlers: Mapping[tuple[str, str], AsyncHandler | AsyncStreaming],
        interceptors: Sequence[AsyncInterceptor],
    ) -> None:
        self._handlers = dict(handlers)
        self._services = frozenset(service for service, _method in self._handlers)
        self._interceptors = tuple(interceptors)

    def find(self, service: str, method: str) -> AsyncHandler | AsyncStreaming:
        """Return the method's handler. Raises RpcError with UNIMPLEMENTED."""
        handler = self._handlers.get((service, method))
        if handler is None:
            missing = f"method {method}" if service in self._services else f"service {service}"
            raise RpcError(Code.UNIMPLEMENTED, missing)
        return handler

    def run(self, call: Call, handler: Callable[[Call], Awaitable[bytes | None]]) -> Awaitable[bytes | None]:
        """Call the handler through all interceptors, the first one outermost, and return its result."""
        return self._through(0, call, handler) if self._interceptors else handler(call)

    def _through(
        self, position: int, call: Call, handler: Callable[[Call], Awaitable[bytes | None]]
    ) -> Awaitable[bytes | None]:
        if position == len(self._interceptors):
            return handler(call)
        return self._interceptors[position](call, lambda inner: self._through(position + 1, inner, handler))
