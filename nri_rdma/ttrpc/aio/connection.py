"""One connection of an asyncio server: its calls, which run as tasks, and how it ends.

Memory is bounded. For each running unary call, a connection holds at most one message of the greatest length. It holds
at most one more for reading, and one for writing. Each stream holds at most what inbox.py says. While a peer does not
read its answers, the server reads nothing from it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass

from ..calls import Call
from ..connection import LOOK_AGAIN_S
from ..endpoint import has_hung_up
from ..error import NIL_ANSWER, ConnectionClosed, RpcError, status_of
from ..wire import Code, Data, End, OversizedMessage, Rejected, Request, ServerConnection
from ..wire.error import ProtocolError
from .calls import AsyncHandler, AsyncMethods, AsyncStreaming
from .link import Link
from .queue import Queue

log = logging.getLogger(__name__)

Event = Request | Data | End | Rejected


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The maximum number of unary calls, and that of streaming calls, that run for one connection."""

    max_calls: int
    max_streams: int


class ServerLink(Link[Event]):
    """Answers the calls of one client, until the client disconnects or drain() or cut() is called."""

    def __init__(
        self,
        methods: AsyncMethods,
        limits: Limits,
        *,
        on_start: Callable[[ServerLink], bool],
        on_end: Callable[[ServerLink], None],
    ) -> None:
        self._protocol = ServerConnection()
        super().__init__(self._protocol)
        self._methods = methods
        self._limits = limits
        self._on_start = on_start
        self._on_end = on_end
        self._cancelled = threading.Event()  # Call.cancelled of all unary calls; set when the caller disconnects
        self._tasks: set[asyncio.Task[None]] = set()
        self._streams: dict[int, HandlerStream] = {}
        self._draining = False
        self._look: asyncio.TimerHandle | None = None  # runs while a call waits for another one's end

    @property
    def running(self) -> int:
        """The number of calls that have no answer yet."""
        return len(self._tasks)

    def drain(self) -> None:
        """Refuse further calls, and end the connection when the running calls are answered."""
        self._draining = True
        self.go_on()  # also refuses a call that waits to run
        self._end_if_drained()

    def cut(self) -> None:
        """End the connection at once. Running handlers are cancelled; their answers are lost."""
        self.hang_up("closed by the server", at_once=True)

    async def ended(self) -> None:
        """Wait until the connection is closed and its calls have ended."""
        await self.gone()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._on_start(self):
            self.hang_up("refused", at_once=True)

    def take(self, event: Event) -> bool:
        if isinstance(event, Request):
            return self._admit(event)
        stream = self._streams.get(event.stream_id)
        if isinstance(event, Rejected):
            self.write(event.reply)
            if stream is not None:
                stream.fail(RpcError(Code.INVALID_ARGUMENT, "the caller broke the protocol"))
        elif stream is None:
            pass  # a unary call takes no messages; the Go server ignores them, too
        elif isinstance(event, End):
            stream.queue.end()
        else:
            return stream.queue.put(event.payload)
        return True

    def lost(self) -> None:
        self._cancelled.set()
        for stream in list(self._streams.values()):
            stream.fail(ConnectionClosed("the caller has gone"))
        for task in self._tasks:
            task.cancel()
        if not self._tasks:
            self._on_end(self)

    def _may_take(self) -> bool:
        return self._may_write is None

    def _admit(self, request: Request) -> bool:
        """Start a call, or answer it with an error, and return True. Return False if the call has to wait until another
        call ends."""
        try:
            handler = self._methods.find(request.service, request.method)
            if self._draining:
                raise RpcError(Code.UNAVAILABLE, "the server is closing")
            if isinstance(handler, AsyncStreaming):
                self._start(self._run_stream(request, *self._open(request, handler), handler))
            elif len(self._tasks) - len(self._streams) >= self._limits.max_calls:
                self._look_later()
                return False
            else:
                self._start(self._answer(request, handler))
        except RpcError as exc:
            self.write(self._protocol.fail(request.stream_id, exc.code, exc.message))
        return True

    def _look_later(self) -> None:
        """Look regularly whether the caller has gone, as long as a call waits: nothing is read then."""
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._look_for_end)

    def _look_for_end(self) -> None:
        self._look = None
        if self.closed is not None or self._held is None or self._transport is None:
            return
        if has_hung_up(self._transport.get_extra_info("socket").fileno()):
            self.hang_up("closed by the peer", at_once=True)
        else:
            self._look_later()

    def _open(self, request: Request, method: AsyncStreaming) -> tuple[Call, HandlerStream]:
        if request.is_unary and method.server_streams:
            raise RpcError(Code.INVALID_ARGUMENT, f"method {request.method} streams, and the request is a unary one")
        if len(self._streams) >= self._limits.max_streams:
            raise RpcError(Code.RESOURCE_EXHAUSTED, f"more than {self._limits.max_streams} streams on one connection")
        call = self._call(request, threading.Event())
        stream = HandlerStream(self, self._protocol, request.stream_id, call, sends=method.server_streams)
        if request.payload or not method.client_streams:
            stream.queue.put(request.payload)
        if not request.is_followed:
            stream.queue.end()
        self._streams[request.stream_id] = stream
        return call, stream

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self.closed is not None:
            if not self._tasks:
                self._on_end(self)
            return
        self.go_on()
        self._end_if_drained()

    async def _answer(self, request: Request, handler: AsyncHandler) -> None:
        call = self._call(request, self._cancelled)
        answer = await _attempt(call, self._methods.run, handler)
        if isinstance(answer, RpcError):
            await self._reply(request.stream_id, answer)
        else:
            await self._reply(request.stream_id, answer, ends=True)

    async def _run_stream(self, request: Request, call: Call, stream: HandlerStream, method: AsyncStreaming) -> None:
        async def run(call: Call) -> bytes | None:
            payload = await method.handler(call, stream)
            if method.server_streams and payload is not None:
                await stream.send(payload)
            return payload

        try:
            answer = await _attempt(call, self._methods.run, run, may_be_none=method.server_streams)
        finally:
            del self._streams[request.stream_id]
            stream.fail(RpcError(Code.CANCELED, "the call is over"))
        await self._reply(request.stream_id, answer, ends=not method.server_streams)

    async def _reply(self, stream_id: int, answer: bytes | RpcError | None, *, ends: bool = False) -> None:
        """Write the last frame of a call. An RpcError becomes an error frame. With `ends`, `answer` is the only answer;
        without, the frame says that no more messages come."""
        try:
            if isinstance(answer, RpcError):
                frame = self._protocol.fail(stream_id, answer.code, answer.message)
            elif ends and answer is not None:
                frame = self._protocol.respond(stream_id, answer)
            else:
                frame = self._protocol.close_send(stream_id)
        except ProtocolError as exc:  # the peer violated the protocol and got an error for it
            log.debug("an answer that nobody waits for", extra={"reason": str(exc)})
            return
        self.write(frame)
        if self._may_write is not None and self.closed is None:  # the call counts as running until its answer is sent
            try:
                await self.drained()
            except ConnectionClosed as exc:
                log.debug("an answer was lost", extra={"reason": str(exc)})

    def _call(self, request: Request, cancelled: threading.Event) -> Call:
        deadline = time.monotonic() + request.timeout_ns / 1e9 if request.timeout_ns else None
        return Call(request.service, request.method, request.payload, request.metadata, deadline, cancelled)

    def _end_if_drained(self) -> None:
        if self._draining and not self._tasks and self.closed is None:
            self.hang_up("closed by the server", at_once=False)


class HandlerStream:
    """The AsyncStream (calls.py) that a handler gets. The connection puts received messages into its queue."""

    def __init__(
        self, link: ServerLink, protocol: ServerConnection, stream_id: int, call: Call, *, sends: bool
    ) -> None:
        self.queue = Queue(link.go_on, self._overflown)
        self._link = link
        self._protocol = protocol
        self._stream_id = stream_id
        self._call = call
        self._sends = sends

    async def receive(self) -> bytes | None:
        """Return the caller's next message; see calls.AsyncStream.receive()."""
        return await self.queue.take()

    async def send(self, payload: bytes) -> None:
        """Send a message to the caller; see calls.AsyncStream.send()."""
        if not self._sends:
            raise RpcError(Code.INTERNAL, f"{self._call.full_method} has one answer: the handler returns it")
        await self._link.drained()
        try:
            frame = self._protocol.send_data(self._stream_id, payload)
        except OversizedMessage as exc:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
        except ProtocolError as exc:
            raise self.queue.failure or ConnectionClosed("the call is over") from exc
        self._link.write(frame)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (payload := await self.receive()) is not None:
            yield payload

    def fail(self, failure: Exception) -> None:
        """End the stream early with this error. Only the connection calls this."""
        self.queue.fail(failure)
        self._call.cancelled.set()

    def _overflown(self) -> None:
        status = RpcError(Code.RESOURCE_EXHAUSTED, "the handler does not take the stream's messages")
        self._link.write(self._protocol.fail(self._stream_id, status.code, status.message))
        self.fail(status)


async def _attempt(
    call: Call,
    run: Callable[[Call, Callable[[Call], Awaitable[bytes | None]]], Awaitable[bytes | None]],
    handler: Callable[[Call], Awaitable[bytes | None]],
    *,
    may_be_none: bool = False,
) -> bytes | RpcError | None:
    """Return the handler's result. If the handler raises, return the status that its caller gets for the exception."""
    try:
        if call.deadline is None:
            return _checked(call, await run(call, handler), may_be_none)
        async with asyncio.timeout(call.deadline - time.monotonic()):
            return _checked(call, await run(call, handler), may_be_none)
    except (RpcError, ConnectionClosed) as exc:
        return status_of(exc)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return RpcError(Code.CANCELED, "the handler was cancelled")
    except TimeoutError as exc:
        return RpcError(Code.DEADLINE_EXCEEDED, str(exc) or "the call's deadline is over")
    except Exception as exc:
        # The caller gets the error; other calls go on.
        log.exception("a handler failed", extra={"service": call.service, "method": call.method})
        return status_of(exc)


def _checked(call: Call, payload: object, may_be_none: bool) -> bytes | None:
    """Return the handler's answer. Raises RpcError for None, unless `may_be_none`, and TypeError for any other value
    that is not bytes."""
    if payload is None and not may_be_none:
        raise RpcError(Code.UNKNOWN, NIL_ANSWER)
    if payload is not None and not isinstance(payload, bytes):
        raise TypeError(f"handler of {call.service}/{call.method} returned {type(payload).__name__}, not bytes")
    return payload
