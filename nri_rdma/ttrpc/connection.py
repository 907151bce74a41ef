"""One connection of a server: its threads, and how it ends.

The threads take turns. One thread reads. When it has read a unary call, it lets the next thread read and answers the
call itself, so no call is passed between threads. There are at most `max_calls` + 1 threads. While `max_calls` calls
run, the last thread still reads, to serve streams and to notice the end of the connection. When a further call comes,
this thread stops reading, and the caller's bytes wait in the kernel.

A streaming call has a thread of its own, because a handler that waits for messages must not stop the reading. Beyond
`max_streams` it is refused.

Memory is bounded. For each running unary call, a connection holds at most one message of the greatest length. The
reader holds at most two more. Each stream holds at most what inbox.py says.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from .calls import Call, Handler, Methods, Streaming
from .endpoint import has_hung_up
from .error import NIL_ANSWER, ConnectionClosed, RpcError, status_of
from .handlerstream import HandlerStream
from .wire import Code, Data, End, OversizedMessage, Rejected, Request, ServerConnection
from .wire.error import ProtocolError

log = logging.getLogger(__name__)

R = TypeVar("R")

_RECEIVE_SIZE = 64 << 10
LOOK_AGAIN_S = 1.0
"""How often, in seconds, a server looks whether the caller has gone while a call beyond max_calls waits."""
_SEND_TIMEOUT_S = 10  # a caller that does not read its answer loses the connection


class Connection:
    """Answers the calls of one client, until the client disconnects or drain() or cut() is called. It owns the
    socket."""

    def __init__(
        self,
        connection: socket.socket,
        methods: Methods[Handler | Streaming, bytes | None],
        *,
        name: str,
        max_calls: int,
        max_streams: int,
        on_end: Callable[[Connection], None],
    ) -> None:
        self._socket = connection
        self._methods = methods
        self._name = name
        self._max_calls = max_calls
        self._max_turns = max_calls + 1 if max_calls > 1 else 1
        self._max_streams = max_streams
        self._on_end = on_end
        self._gone = threading.Event()
        self._reading = threading.Lock()  # held by the one thread that reads
        self._sending = threading.Lock()  # held while a frame is built and written, to keep their order
        self._lock = threading.Lock()  # guards all below; nothing blocks under it
        self._room = threading.Condition(self._lock)  # signals that one more unary call may run
        self._protocol = ServerConnection()
        self._streams: dict[int, HandlerStream] = {}
        self._threads: set[threading.Thread] = set()
        self._names = 0  # number of threads named so far
        self._turns = 0  # number of threads that take turns
        self._readers = 0  # number of these that read or wait to read
        self._calls = 0  # number of unary calls that run
        self._draining = False

    def start(self) -> None:
        """Start to answer calls. Raises OSError, or RuntimeError if no thread can be started. After an error no thread
        runs."""
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@qq", _SEND_TIMEOUT_S, 0))
        self._start_turns()

    def drain(self) -> None:
        """Refuse further calls, and end the connection when the running calls are answered."""
        with self._lock:
            self._draining = True
            self._room.notify()
            self._end_if_drained()

    def cut(self) -> None:
        """End the connection at once. Running handlers see this in Call.cancelled; their answers are lost."""
        with self._lock, contextlib.suppress(OSError):  # the caller has already disconnected
            self._socket.shutdown(socket.SHUT_RDWR)  # before _lose(), so that no handler can still answer
        self._lose()

    def threads(self) -> list[threading.Thread]:
        """Return the threads that are still running."""
        with self._lock:
            return list(self._threads)

    def send_message(self, stream: HandlerStream, payload: bytes) -> None:
        """Write a message of a handler's stream. Raises the errors of HandlerStream.send()."""
        with self._sending:
            try:
                with self._lock:
                    frame = self._protocol.send_data(stream.stream_id, payload)
            except OversizedMessage as exc:
                raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
            except ProtocolError as exc:
                raise stream.failure() or ConnectionClosed("the call is over") from exc
            if not self._write(frame):
                raise ConnectionClosed("the caller has gone, or does not read")

    def _take_turns(self) -> None:
        while True:
            with self._reading:
                turn = self._read()
            if turn is None:
                return
            if self._needs_another_reader():
                with contextlib.suppress(RuntimeError):  # out of threads: this one reads again after its answer
                    self._start_turns()
            try:
                self._answer(*turn)
            finally:
                self._finish_turn()

    def _finish_turn(self) -> None:
        with self._lock:
            self._calls -= 1
            self._readers += 1
            self._room.notify()
            self._end_if_drained()

    def _needs_another_reader(self) -> bool:
        with self._lock:
            self._readers -= 1
            return not self._readers and self._turns < self._max_turns

    def _read(self) -> tuple[Request, Handler] | None:
        try:
            while True:
                with self._lock:
                    event = self._protocol.next_event()
                if event is None:
                    data = self._socket.recv(_RECEIVE_SIZE)
                    if not data:
                        break
                    self._protocol.receive_data(data)
                elif not isinstance(event, Request):
                    self._feed(event)
                elif (handler := self._admit(event)) is not None:
                    return event, handler
        except OSError as exc:
            log.debug("connection lost", extra={"error": str(exc)})
        self._lose()
        return None

    def _admit(self, request: Request) -> Handler | None:
        """Return the handler of a unary call. For a streaming call, start its thread and return None; for a refused
        call, send the error and return None."""
        try:
            handler = self._methods.find(request.service, request.method)
            with self._lock:
                if not isinstance(handler, Streaming):
                    self._wait_for_room()
                if self._draining:
                    raise RpcError(Code.UNAVAILABLE, "the server is closing")
                if not isinstance(handler, Streaming):
                    self._calls += 1
                    return handler
            self._open(request, handler)
        except RpcError as exc:
            self._reply(partial(self._protocol.fail, request.stream_id, exc.code, exc.message))
        return None

    def _wait_for_room(self) -> None:
        """Wait until one more unary call may run, or the server drains. Raises OSError if the caller goes meanwhile,
        because nobody reads and would notice. The caller of this method holds the lock."""
        while not self._room.wait_for(lambda: self._calls < self._max_calls or self._draining, LOOK_AGAIN_S):
            if has_hung_up(self._socket.fileno()):
                raise ConnectionAbortedError("the caller has gone while its call waited")

    def _open(self, request: Request, method: Streaming) -> None:
        """Start the thread of a streaming call. Raises RpcError if the call is not allowed, or if there are too many
        streams or threads."""
        if request.is_unary and method.server_streams:
            raise RpcError(Code.INVALID_ARGUMENT, f"method {request.method} streams, and the request is a unary one")
        call = self._call(request, threading.Event())
        stream = HandlerStream(self, request.stream_id, call, sends=method.server_streams)
        if request.payload or not method.client_streams:
            stream.put(request.payload)
        if not request.is_followed:
            stream.end()
        with self._lock:
            if len(self._streams) >= self._max_streams:
                raise RpcError(Code.RESOURCE_EXHAUSTED, f"more than {self._max_streams} streams on one connection")
            self._streams[request.stream_id] = stream
        try:
            self._start_thread(partial(self._run_stream, call, stream, method))
        except RuntimeError as exc:
            self._close(stream)
            raise RpcError(Code.RESOURCE_EXHAUSTED, "the server is out of threads") from exc

    def _feed(self, event: Data | End | Rejected) -> None:
        with self._lock:
            stream = self._streams.get(event.stream_id)
        if isinstance(event, Rejected):
            if stream is not None:
                stream.fail(RpcError(Code.INVALID_ARGUMENT, "the caller broke the protocol"))
            self._reply(lambda: event.reply)
        elif stream is None:
            return  # a unary call takes no messages; the Go server ignores them, too
        elif isinstance(event, End):
            stream.end()
        elif not stream.put(event.payload):
            status = RpcError(Code.RESOURCE_EXHAUSTED, "the handler does not take the stream's messages")
            self._reply(partial(self._protocol.fail, event.stream_id, status.code, status.message))
            stream.fail(status)

    def _answer(self, request: Request, handler: Handler) -> None:
        call = self._call(request, self._gone)
        answer = self._attempt(call, lambda: _checked(call, self._methods.run(call, handler)))
        if isinstance(answer, RpcError):
            self._reply(partial(self._protocol.fail, request.stream_id, answer.code, answer.message))
        else:
            self._reply(partial(self._protocol.respond, request.stream_id, answer))

    def _run_stream(self, call: Call, stream: HandlerStream, method: Streaming) -> None:
        def run() -> bytes | None:
            payload = self._methods.run(call, lambda call: method.handler(call, stream))
            if method.server_streams and payload is not None:
                stream.send(_checked(call, payload))
            return None if method.server_streams else _checked(call, payload)

        answer = self._attempt(call, run)
        self._close(stream)  # before the answer, after which the caller may open the next stream
        if isinstance(answer, RpcError):
            self._reply(partial(self._protocol.fail, stream.stream_id, answer.code, answer.message))
        elif answer is None:
            self._reply(partial(self._protocol.close_send, stream.stream_id))
        else:
            self._reply(partial(self._protocol.respond, stream.stream_id, answer))

    def _attempt(self, call: Call, run: Callable[[], R]) -> R | RpcError:
        """Return the handler's result. If the handler raises, return the status that its caller gets for the
        exception."""
        try:
            return run()
        except (RpcError, ConnectionClosed) as exc:
            return status_of(exc)
        except Exception as exc:
            # The caller gets the error; other calls go on.
            log.exception("a handler failed", extra={"service": call.service, "method": call.method})
            return status_of(exc)

    def _close(self, stream: HandlerStream) -> None:
        with self._lock:
            del self._streams[stream.stream_id]
            self._end_if_drained()
        stream.fail(RpcError(Code.CANCELED, "the call is over"))

    def _reply(self, make: Callable[[], bytes]) -> None:
        """Write the last frame of a call, which `make` builds. If the stream has already ended, write nothing."""
        with self._sending:
            try:
                with self._lock:
                    frame = make()
            except ProtocolError as exc:  # the peer violated the protocol and got an error for it
                log.debug("an answer that nobody waits for", extra={"reason": str(exc)})
                return
            self._write(frame)

    def _write(self, frame: bytes) -> bool:
        """Write a frame, and return True. On an error, cut the connection and return False."""
        try:
            self._socket.sendall(frame)
        except OSError as exc:
            log.debug("connection lost", extra={"error": str(exc)})
            self.cut()
            return False
        return True

    def _call(self, request: Request, cancelled: threading.Event) -> Call:
        deadline = time.monotonic() + request.timeout_ns / 1e9 if request.timeout_ns else None
        return Call(request.service, request.method, request.payload, request.metadata, deadline, cancelled)

    def _end_if_drained(self) -> None:
        """If drain() was called and no call runs, make the reader see the end of the connection. The caller holds the
        lock.

        Sending stays possible, because the last frame of a stream may not be written yet.
        """
        if self._draining and not self._calls and not self._streams:
            with contextlib.suppress(OSError):  # the caller has already disconnected
                self._socket.shutdown(socket.SHUT_RD)

    def _lose(self) -> None:
        self._gone.set()
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.fail(ConnectionClosed("the caller has gone"))

    def _start_turns(self) -> None:
        with self._lock:
            self._turns += 1
            self._readers += 1
        try:
            self._start_thread(self._take_turns)
        except RuntimeError:
            with self._lock:
                self._turns -= 1
                self._readers -= 1
            raise

    def _start_thread(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._names += 1
            name = f"{self._name}.{self._names}"
            thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            with self._lock:
                self._threads.discard(thread)
            raise

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException:  # a handler that raises SystemExit ends the whole connection
            self.cut()
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        """Remove this thread from the connection's threads. If it was the last thread, close the socket."""
        with self._lock:
            self._threads.discard(threading.current_thread())
            if self._threads:
                return
            self._socket.close()
        self._on_end(self)


def _checked(call: Call, payload: object) -> bytes:
    """Return the handler's answer. Raises RpcError for None, and TypeError for any other value that is not bytes."""
    if payload is None:
        raise RpcError(Code.UNKNOWN, NIL_ANSWER)
    if not isinstance(payload, bytes):
        raise TypeError(f"handler of {call.service}/{call.method} returned {type(payload).__name__}, not bytes")
    return payload
