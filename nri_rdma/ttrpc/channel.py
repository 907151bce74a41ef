"""A client's connection: its writers, its reader, and its end.

The connection has no thread of its own: of the waiting callers one at a time reads, and hands the others their events.
So a lone caller pays no thread switch, and no thread needs to be joined. A caller that cannot write reads too, since
the server may be waiting for that. A message that was sent only in part closes the connection, as does anything that
breaks the protocol: a connection is thrown away, never mended.

Messages that no caller takes are kept, up to a bound (inbox.py); then their stream fails, not the connection.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable

from .error import ConnectionClosed, RpcError
from .inbox import PATIENCE_S, Inbox
from .wire import ClientConnection, Code, Data, End, OversizedMessage, Response
from .wire.error import ProtocolError

_RECEIVE_SIZE = 64 << 10
_LOOK_AGAIN_S = 0.05
"""Longest time that a caller writes without reading because another caller reads; then it checks whether that one still
does."""


class Pending:
    """A call under way: its events, and its end."""

    __slots__ = ("inbox", "outcome", "server_streams", "stream_id")

    def __init__(self, stream_id: int, server_streams: bool) -> None:
        self.stream_id = stream_id
        self.server_streams = server_streams
        self.inbox = Inbox()
        self.outcome: Response | End | None = None

    def is_ready(self) -> bool:
        """Return whether there is a message to take, or none will come."""
        return self.outcome is not None or bool(self.inbox)


class Channel:
    """The calls of one connected stream socket, from any number of threads. Owns the socket."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._connection = ClientConnection()
        self._sending = threading.Lock()  # held from the choice of a frame until it is written
        self._state = threading.Condition()  # guards all below and the connection's tables
        self._pending: dict[int, Pending] = {}  # the calls that have no outcome yet
        self._full: dict[int, float] = {}  # those whose messages nobody takes, and until when that is borne
        self._reading = False  # one of the waiting callers is in _read_once()
        self._closed: str | None = None  # why
        self._watcher: threading.Thread | None = None

    def watch(self, on_close: Callable[[], None]) -> None:
        """Start the thread that calls on_close, once, when the connection has ended; close() waits for it."""
        self._watcher = threading.Thread(target=self._watch, args=(on_close,), name="ttrpc-watch", daemon=True)
        self._watcher.start()

    def open(
        self,
        make: Callable[[ClientConnection], tuple[int, bytes]],
        deadline: float | None,
        *,
        server_streams: bool = False,
    ) -> Pending:
        """Write the request that make() has the connection make, and return the call.

        Raises RpcError for one that is too long and at the deadline, ConnectionClosed, and ProtocolError from make().
        """
        self._take_turn(deadline)
        try:
            with self._state:
                self._raise_if_closed()
                try:
                    stream_id, frame = make(self._connection)
                except OversizedMessage as exc:
                    raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
                pending = self._pending[stream_id] = Pending(stream_id, server_streams)
            try:
                self._write(frame, deadline)
            except BaseException:
                self.drop(pending, Code.CANCELED, "the request was not sent")
                raise
        finally:
            self._sending.release()
        return pending

    def send(self, pending: Pending, payload: bytes | None, deadline: float | None) -> None:
        """Write a message of the call, or the end of its messages for None. Raises as ClientStream.send() does."""
        self._take_turn(deadline)
        try:
            with self._state:
                self._raise_if_closed()
                frame = self._message(pending, payload)
            self._write(frame, deadline)
        finally:
            self._sending.release()

    def wait(self, pending: Pending, deadline: float | None) -> bool:
        """Read, or let another read, until the call is ready; False at the deadline. Raises ConnectionClosed."""
        with self._state:
            try:
                while not pending.is_ready():
                    self._raise_if_closed()
                    remaining = _remaining_s(deadline)
                    if remaining is not None and remaining <= 0:
                        return False
                    patience = self._patience_s()
                    if self._reading:
                        self._state.wait(remaining)
                    elif patience is not None:
                        self._state.wait(patience if remaining is None else min(patience, remaining))
                    else:
                        self._read_once(select.POLLIN, deadline)
                return True
            finally:
                self._state.notify_all()  # whoever waits may have to take over the reading

    def take(self, pending: Pending) -> bytes | None:
        """Return the oldest message of the call that was not taken, or None."""
        with self._state:
            payload = pending.inbox.take()
            if pending.stream_id in self._full and not pending.inbox.is_full:
                del self._full[pending.stream_id]
                self._state.notify_all()  # reading may go on
            return payload

    def drop(self, pending: Pending, code: Code, text: str) -> None:
        """End the call from our side; a call that has ended keeps its outcome. Later events are dropped."""
        with self._state:
            if pending.outcome is None:
                self._connection.forget(pending.stream_id)
                self._end(pending, Response(pending.stream_id, code, text, b""))
                self._state.notify_all()

    def close(self) -> None:
        """Close the connection; calls that wait raise ConnectionClosed. May be repeated."""
        self._fail("closed by this client")
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        with self._sending, self._state:  # both threads that may be using the descriptor have left it
            self._state.wait_for(lambda: not self._reading)
            self._socket.close()

    def _take_turn(self, deadline: float | None) -> None:
        """Acquire _sending."""
        remaining = _remaining_s(deadline)
        if not self._sending.acquire(timeout=-1 if remaining is None else max(remaining, 0)):
            raise RpcError(Code.DEADLINE_EXCEEDED, "not sent in time: another message is being written")

    def _message(self, pending: Pending, payload: bytes | None) -> bytes:
        try:
            if payload is None:
                return self._connection.close_send(pending.stream_id)
            return self._connection.send_data(pending.stream_id, payload)
        except OversizedMessage as exc:
            raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
        except ProtocolError as exc:
            match pending.outcome:
                case Response(code=code, message=message) if code != Code.OK:
                    raise RpcError(code, message) from exc
                case None:
                    raise
                case _:
                    raise EOFError("the server has ended the stream") from exc

    def _write(self, data: bytes, deadline: float | None) -> None:
        view, reason = memoryview(data), "a message was sent in part"
        try:
            while view:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    self._wait_writable(deadline)
        except ConnectionClosed:
            raise
        except OSError as exc:
            self._fail(f"send failed: {exc}")
            raise ConnectionClosed(f"ttrpc connection: send failed: {exc}") from exc
        finally:
            if 0 < len(view) < len(data):
                self._fail(reason)

    def _wait_writable(self, deadline: float | None) -> None:
        """Wait a while for the socket to take more; when nobody reads, read meanwhile."""
        remaining = _remaining_s(deadline)
        if remaining is not None and remaining <= 0:
            raise RpcError(Code.DEADLINE_EXCEEDED, "not sent in time: the server does not read")
        with self._state:
            self._raise_if_closed()
            if not self._reading and self._patience_s() is None:
                self._read_once(select.POLLIN | select.POLLOUT, deadline)
                return
        soon = time.monotonic() + _LOOK_AGAIN_S
        _poll(self._socket, select.POLLOUT, soon if deadline is None else min(soon, deadline))

    def _read_once(self, events: int, deadline: float | None) -> None:
        """Wait for one of the events and receive, without the lock, then hand out what came."""
        self._reading = True
        self._state.release()
        data: bytes | None = None
        reason = "closed by the peer"
        try:
            data = self._socket.recv(_RECEIVE_SIZE) if _poll(self._socket, events, deadline) else None
        except BlockingIOError:
            data = None
        except OSError as exc:
            data, reason = b"", f"receive failed: {exc}"
        finally:
            self._state.acquire()
            self._reading = False
            self._state.notify_all()  # they look when we let go of the lock: at what came, and at who reads next
        if data == b"":
            self._fail(reason)
        elif data:
            self._hand_out(data)

    def _hand_out(self, data: bytes) -> None:
        self._connection.receive_data(data)
        while (event := self._connection.next_event()) is not None:
            pending = self._pending.get(event.stream_id)
            if pending is None:
                continue
            if isinstance(event, Data):
                pending.inbox.put(event.payload)
                if pending.inbox.is_full:
                    self._full.setdefault(event.stream_id, time.monotonic() + PATIENCE_S)
                continue
            if isinstance(event, Response) and pending.server_streams and event.payload and event.code == Code.OK:
                pending.inbox.put(event.payload)  # an answer where messages were due is the last of them, as in Go
            self._end(pending, event)

    def _end(self, pending: Pending, outcome: Response | End) -> None:
        pending.outcome = outcome
        self._pending.pop(pending.stream_id, None)
        self._full.pop(pending.stream_id, None)

    def _patience_s(self) -> float | None:
        """Return how long to wait before reading on, because a stream is full; None = read now. Streams that have been
        full for too long fail here."""
        now = time.monotonic()
        for stream_id in [stream_id for stream_id, until in self._full.items() if until <= now]:
            self.drop(self._pending[stream_id], Code.RESOURCE_EXHAUSTED, "nobody takes the stream's messages")
        return min(self._full.values()) - now if self._full else None

    def _watch(self, on_close: Callable[[], None]) -> None:
        """Wait until either side hangs up, have the remaining bytes read, and call on_close."""
        poller = select.poll()
        poller.register(self._socket, select.POLLRDHUP)
        poller.poll()
        with self._state:
            while self._closed is None:
                if self._reading:
                    self._state.wait()
                else:
                    self._read_once(select.POLLIN, None)
        on_close()

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise ConnectionClosed(f"ttrpc connection: {self._closed}")

    def _fail(self, reason: str) -> None:
        """End the connection for every caller; the first reason stays."""
        with self._state:
            if self._closed is None:
                self._closed = reason
                with contextlib.suppress(OSError):  # the peer was faster
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes the reader and the writer out of poll
            self._state.notify_all()


def _poll(connection: socket.socket, events: int, deadline: float | None) -> bool:
    """Wait until the socket is ready, or broken, for one of the events; False when the deadline came first."""
    poller = select.poll()
    poller.register(connection, events)
    remaining = _remaining_s(deadline)
    return bool(poller.poll(None if remaining is None else math.ceil(max(remaining, 0) * 1000)))


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
