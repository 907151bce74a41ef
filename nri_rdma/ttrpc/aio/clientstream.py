"""A streaming call, as its asyncio caller uses it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from types import TracebackType
from typing import Protocol, Self, TypeVar

from ..error import ConnectionClosed, RpcError
from ..wire import ClientConnection, Code, Data, End, OversizedMessage, Response
from ..wire.error import ProtocolError
from .queue import Queue

R = TypeVar("R")


class Owner(Protocol):
    """The connection to which a stream belongs."""

    closed: str | None

    def write(self, frame: bytes) -> None: ...
    async def drained(self) -> None: ...
    def go_on(self) -> None: ...
    def forget(self, stream_id: int) -> None: ...


class AsyncClientStream:
    """The messages of a streaming call, to and from the server. One task may send, and another one may receive.

    As an asynchronous context manager, it abandons the stream on exit, unless the stream has ended: no more messages
    are sent, and messages that still come from the server are dropped.
    """

    def __init__(
        self, owner: Owner, connection: ClientConnection, stream_id: int, deadline: float | None, server_streams: bool
    ) -> None:
        self._owner = owner
        self._connection = connection
        self._stream_id = stream_id
        self._deadline = deadline
        self._server_streams = server_streams
        self._queue = Queue(owner.go_on, self._overflown)
        self._outcome: Response | End | None = None

    async def send(self, payload: bytes) -> None:
        """Send a message. Waits while the server does not read.

        Raises RpcError if the message is too long, at the deadline, and with the server's status if the server ended
        the stream with an error. Raises EOFError if the server ended the stream normally. Raises ConnectionClosed if
        the connection ends. Raises ProtocolError after close_send(), and on a stream without client_streams.
        """
        await self._in_time(self._owner.drained())
        self._write(payload)

    async def close_send(self) -> None:
        """Tell the server that no more messages come. Raises the errors of send()."""
        await self._in_time(self._owner.drained())
        self._write(None)

    async def receive(self) -> bytes | None:
        """Return the server's next message; None after the last one. A cancelled call loses no message.

        Raises RpcError with the server's status, or with DEADLINE_EXCEEDED at the stream's deadline. Raises
        ConnectionClosed if the connection ends. Messages that arrived before an error are returned first.
        """
        return await self._in_time(self._queue.take())

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (payload := await self.receive()) is not None:
            yield payload

    async def result(self) -> bytes:
        """Tell the server that no more messages come, and return its only answer; b"" if the server streams.

        Messages that were not received before are dropped. Raises the errors of receive().
        """
        with contextlib.suppress(ProtocolError, EOFError):  # already sent, or no longer needed
            await self.close_send()
        while await self.receive() is not None:
            pass
        return self._outcome.payload if isinstance(self._outcome, Response) else b""

    def close(self) -> None:
        """Abandon the stream, unless it has ended. Calling it twice is allowed."""
        if self._outcome is None and self._owner.closed is None:
            with contextlib.suppress(ProtocolError):  # already sent
                self._owner.write(self._connection.close_send(self._stream_id))
        self._drop(Code.CANCELED, "given up by this client")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def take_event(self, event: Response | Data | End) -> bool:
        """Process an event of this stream. Return False if the stream is full. Only the connection calls this."""
        if isinstance(event, Data):
            return self._queue.put(event.payload)
        if isinstance(event, Response):
            if event.code != Code.OK:
                self._outcome = event
                self._queue.fail(RpcError(event.code, event.message))
                return True
            # As in Go, a Response of a streaming server is its last message.
            if self._server_streams and event.payload and not self._queue.put(event.payload):
                return False
        self._outcome = event
        self._queue.end()
        return True

    def fail(self, failure: ConnectionClosed) -> None:
        """End the stream with an error, because the connection has ended. Only the connection calls this."""
        self._queue.fail(failure)

    def _write(self, payload: bytes | None) -> None:
        connection, stream_id = self._connection, self._stream_id
        try:
            frame = connection.close_send(stream_id) if payload is None else connection.send_data(stream_id, payload)
        except OversizedMessage as exc:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
        except ProtocolError as exc:
            match self._outcome:
                case Response(code=code, message=message) if code != Code.OK:
                    raise RpcError(code, message) from exc
                case None:
                    raise
                case _:
                    raise EOFError("the server has ended the stream") from exc
        self._owner.write(frame)

    async def _in_time(self, wait: Awaitable[R]) -> R:
        try:
            return await before(self._deadline, wait)
        except RpcError as exc:
            if exc.code == Code.DEADLINE_EXCEEDED:
                self._drop(Code.DEADLINE_EXCEEDED, exc.message)
            raise

    def _overflown(self) -> None:
        self._drop(Code.RESOURCE_EXHAUSTED, "nobody takes the stream's messages")

    def _drop(self, code: Code, text: str) -> None:
        """End the stream on this side with the given status, unless it has already ended. The server is not told."""
        if self._outcome is None:
            self._outcome = Response(self._stream_id, code, text, b"")
            self._owner.forget(self._stream_id)
            self._queue.fail(RpcError(code, text))


async def before(deadline: float | None, wait: Awaitable[R]) -> R:
    """Await `wait` and return its result. Raises RpcError with DEADLINE_EXCEEDED if it takes until `deadline`, in
    seconds of `time.monotonic`."""
    if deadline is None:
        return await wait
    try:
        async with asyncio.timeout(deadline - time.monotonic()) as limit:
            return await wait
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise RpcError(Code.DEADLINE_EXCEEDED, "no answer in time") from exc
