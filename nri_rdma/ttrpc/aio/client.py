"""A ttrpc client for asyncio."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Protocol, Self, TypeVar

from ..endpoint import adopted, name_path
from ..error import ConnectionClosed, RpcError
from ..outgoing import Outgoing
from ..wire import ClientConnection, Code, Data, End, OversizedMessage, Response
from .clientstream import AsyncClientStream, before
from .link import Link

R = TypeVar("R")


class AsyncClientInterceptor(Protocol):
    """Wraps the client's calls. It may change a call with dataclasses.replace. It gets the answer of a unary call, or
    the opened stream."""

    async def __call__(self, call: Outgoing, proceed: Callable[[Outgoing], Awaitable[R]], /) -> R:
        """Call proceed(call) and return its result, or raise."""


class AsyncClient:
    """A client of one server. Any number of tasks of one event loop may call at the same time.

    `given` is the path of a Unix socket, or a connected stream socket or its file descriptor, which the client then
    owns. Use connect() or `async with` before the first call. `on_close` is called once, when the connection has ended
    for any reason.
    """

    def __init__(
        self,
        given: str | os.PathLike[str] | socket.socket | int,
        *,
        interceptors: Sequence[AsyncClientInterceptor] = (),
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._given = given
        self._interceptors = tuple(interceptors)
        self._link = ClientLink(on_close)

    async def connect(self) -> None:
        """Connect to the server. A second call raises RuntimeError. Raises OSError, with the path, if the connection
        fails."""
        if self._link.is_connected or self._link.closed is not None:
            raise RuntimeError("an AsyncClient connects once")
        given, loop = self._given, asyncio.get_running_loop()
        if isinstance(given, socket.socket | int):
            await loop.create_unix_connection(lambda: self._link, sock=adopted(given))
        else:
            try:
                await loop.create_unix_connection(lambda: self._link, os.fspath(given))
            except OSError as error:
                name_path(error, given)
                raise

    async def call(
        self,
        service: str,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        """Make a unary call, and return the payload of the answer. If the task is cancelled, the client forgets the
        call; the server is not told, because the protocol has no message for it.

        Raises RpcError with the server's status, with DEADLINE_EXCEEDED after timeout_s seconds (None: wait for ever),
        or with RESOURCE_EXHAUSTED if the request is too long. Raises ConnectionClosed if the connection ends. Raises
        ProtocolError, without sending anything, if a text is not valid Unicode.
        """
        call = Outgoing(service, method, payload, timeout_s, tuple(metadata))
        return await through(self._interceptors, call, self._link.call)

    async def stream(
        self,
        service: str,
        method: str,
        payload: bytes = b"",
        *,
        client_streams: bool,
        server_streams: bool,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> AsyncClientStream:
        """Open a streaming call. client_streams and server_streams say who may send any number of messages; they must
        agree with the method's declaration.

        payload is the request if the client sends exactly one message; otherwise leave it empty. Raises the errors of
        call(), except for the server's status, which the stream raises.
        """
        call = Outgoing(service, method, payload, timeout_s, tuple(metadata))
        return await through(
            self._interceptors, call, lambda call: self._link.open_stream(call, client_streams, server_streams)
        )

    async def close(self) -> None:
        """Close the connection; waiting calls raise ConnectionClosed. Calling it twice is allowed."""
        self._link.hang_up("closed by this client", at_once=False)
        await self._link.gone()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class ClientLink(Link[Response | Data | End]):
    """The connection of a client to its server, with the calls that wait for an answer and the open streams."""

    def __init__(self, on_close: Callable[[], None] | None) -> None:
        self._connection = ClientConnection()
        super().__init__(self._connection)
        self._on_close = on_close
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._streams: dict[int, AsyncClientStream] = {}

    async def call(self, call: Outgoing) -> bytes:
        """Make a unary call; see AsyncClient.call()."""
        try:
            async with asyncio.timeout(call.timeout_s) as limit:
                response = await self._answer(call)
        except TimeoutError as exc:
            if not limit.expired():
                raise
            raise RpcError(Code.DEADLINE_EXCEEDED, "no answer in time") from exc
        if response.code != Code.OK:
            raise RpcError(response.code, response.message)
        return response.payload

    async def open_stream(self, call: Outgoing, client_streams: bool, server_streams: bool) -> AsyncClientStream:
        """Open a streaming call; see AsyncClient.stream()."""
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        await self._ready(deadline)
        try:
            stream_id, frame = self._connection.open_stream(
                call.service,
                call.method,
                call.payload,
                client_streams=client_streams,
                server_streams=server_streams,
                timeout_ns=_timeout_ns(deadline),
                metadata=call.metadata,
            )
        except OversizedMessage as exc:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
        self.write(frame)
        stream = AsyncClientStream(self, self._connection, stream_id, deadline, server_streams)
        self._streams[stream_id] = stream
        return stream

    def forget(self, stream_id: int) -> None:
        """Abandon a stream: frames that still come for it are dropped."""
        self._connection.forget(stream_id)
        self._streams.pop(stream_id, None)

    def take(self, event: Response | Data | End) -> bool:
        if isinstance(event, Response) and (answer := self._calls.pop(event.stream_id, None)) is not None:
            if not answer.done():
                answer.set_result(event)
            return True
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return True
        taken = stream.take_event(event)
        if taken and not isinstance(event, Data):
            del self._streams[event.stream_id]
        return taken

    def lost(self) -> None:
        failure = ConnectionClosed(f"ttrpc connection: {self.closed}")
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(ConnectionClosed(str(failure)))
        self._calls.clear()
        for stream in list(self._streams.values()):
            stream.fail(failure)
        self._streams.clear()
        if self._on_close is not None:
            self._on_close()

    async def _answer(self, call: Outgoing) -> Response:
        deadline = None if call.timeout_s is None else time.monotonic() + call.timeout_s
        await self._ready(None)
        try:
            stream_id, frame = self._connection.request(
                call.service, call.method, call.payload, timeout_ns=_timeout_ns(deadline), metadata=call.metadata
            )
        except OversizedMessage as exc:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
        answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._calls[stream_id] = answer
        self.write(frame)
        try:
            return await answer
        finally:
            if self._calls.pop(stream_id, None) is not None:
                self._connection.forget(stream_id)

    async def _ready(self, deadline: float | None) -> None:
        """Wait until a frame may be written. The caller must then build and write the frame without an `await` in
        between."""
        if not self.is_connected:
            raise ConnectionClosed("ttrpc connection: connect() has not been called")
        await before(deadline, self.drained())


async def through(
    interceptors: Sequence[AsyncClientInterceptor], call: Outgoing, send: Callable[[Outgoing], Awaitable[R]]
) -> R:
    """Call `send` through all interceptors, the first one outermost, and return the result."""
    if not interceptors:
        return await send(call)
    return await interceptors[0](call, lambda inner: through(interceptors[1:], inner, send))


def _timeout_ns(deadline: float | None) -> int:
    """Return the timeout to send, in nanoseconds. In the protocol 0 means "no deadline", so a deadline that has passed
    becomes 1."""
    return 0 if deadline is None else max(1, int((deadline - time.monotonic()) * 1e9))
