"""The types of an asyncio server's methods: what a handler gets and returns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from ..calls import Call, Methods


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


AsyncMethods = Methods[AsyncHandler | AsyncStreaming, Awaitable[bytes | None]]
