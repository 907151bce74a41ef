"""The client's end of a connection: writing, reading and closing.

The connection has no thread of its own. One of the waiting callers reads at a time, and passes the other callers their
events. So a single caller needs no thread switch, and no thread has to be joined. A caller that cannot write reads
meanwhile, because the server may be waiting until its messages are read. A message that was sent only in part closes
the connection, and so does any protocol error; a closed connection is not reopened.

Received messages wait for their caller up to a bound (inbox.py). Beyond the bound their stream fails, not the
connection.
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
_POLL_MAX_MS = (1 << 31) - 1
"""The longest time that poll(2) can wait, in milliseconds: 24.8 days."""
_LOOK_AGAIN_S = 0.05
"""How long, in seconds, a caller that waits to write relies on another caller to read. Then it checks again whether
somebody reads."""


class Pending:
    """A call in progress: its received messages, and its outcome once it has ended."""

    __slots__ = ("inbox", "outcome", "server_streams", "stream_id")

    def __init__(self, stream_id: int, server_streams: bool) -> None:
        self.stream_id = stream_id
        self.server_streams = server_streams
        self.inbox = Inbox()
        self.outcome: Response | End | None = None

    def is_ready(self) -> bool:
        """Return whether a message has arrived, or the call has ended."""
        return self.outcome is not None or bool(self.inbox)


class Channel:
    """The calls over one connected stream socket, which the channel owns. Thread-safe."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._socket.setblocking(False)
        self._connection = ClientConnection()
        self._sending = threading.Lock()  # held while a frame is built and written
        self._state = threading.Condition()  # guards all below and the connection's tables
        self._pending: dict[int, Pending] = {}  # the calls that have no outcome yet
        self._full: dict[int, float] = {}  # full streams: stream id to the time when it fails
        self._reading = False  # one of the waiting callers is in _read_once()
        self._closed: str | None = None  # the reason of the connection's end
        self._watcher: threading.Thread | None = None

    def watch(self, on_close: Callable[[], None]) -> None:
        """Start a thread that calls `on_close` once, when the connection has ended. The method `close` waits for this
        thread."""
        self._watcher = threading.Thread(target=self._watch, args=(on_close,), name="ttrpc-watch", daemon=True)
        self._watcher.start()

    def open(
        self,
        make: Callable[[ClientConnection], tuple[int, bytes]],
        deadline: float | None,
        *,
        server_streams: bool = False,
    ) -> Pending:
        """Write the request that `make` builds, and return the call.

        Raises RpcError if the request is too long or the deadline passes, ConnectionClosed if the connection has ended,
        and ProtocolError from `make`. `deadline` is in seconds of `time.monotonic`; None: none.
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
        """Write a message of the call. If `payload` is None, write the mark that no more messages come. Raises the
        errors of ClientStream.send()."""
        self._take_turn(deadline)
        try:
            with self._state:
                self._raise_if_closed()
                frame = self._message(pending, payload)
            self._write(frame, deadline)
        finally:
            self._sending.release()

    def wait(self, pending: Pending, deadline: float | None) -> bool:
        """Wait until a message has arrived or the call has ended; return False at the deadline. Reads from the socket
        if no other caller does.

        Raises ConnectionClosed if the connection has ended.
        """
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
                self._state.notify_all()  # another waiting caller may have to read

    def take(self, pending: Pending) -> bytes | None:
        """Return the oldest received message of the call; None if there is none."""
        with self._state:
            payload = pending.inbox.take()
            if pending.stream_id in self._full and not pending.inbox.is_full:
                del self._full[pending.stream_id]
                self._state.notify_all()  # another caller may read again
            return payload

    def drop(self, pending: Pending, code: Code, text: str) -> None:
        """End the call locally with this status, unless it has already ended. Later frames of the call are dropped."""
        with self._state:
            if pending.outcome is None:
                self._connection.forget(pending.stream_id)
                self._end(pending, Response(pending.stream_id, code, text, b""))
                self._state.notify_all()

    def close(self) -> None:
        """Close the connection; waiting calls raise ConnectionClosed. Calling it twice is allowed."""
        self._fail("closed by this client")
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        with self._sending, self._state:  # no other thread uses the descriptor any more
            self._state.wait_for(lambda: not self._reading)
            self._socket.close()

    def _take_turn(self, deadline: float | None) -> None:
        """Acquire the lock for sending. Raises RpcError with DEADLINE_EXCEEDED if another caller holds it until the
        deadline."""
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
        """Wait at most _LOOK_AGAIN_S until the socket accepts more bytes. If no other caller reads, read meanwhile."""
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
        """Wait for one of the poll events, receive once, and pass each received event to its call. The state's lock is
        released during the wait."""
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
            self._state.notify_all()  # waiting callers check their events, and one of them reads next
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
                pending.inbox.put(event.payload)  # as in Go, a Response of a streaming server is its last message
            self._end(pending, event)

    def _end(self, pending: Pending, outcome: Response | End) -> None:
        pending.outcome = outcome
        self._pending.pop(pending.stream_id, None)
        self._full.pop(pending.stream_id, None)

    def _patience_s(self) -> float | None:
        """Return how many seconds to wait before reading again, because a stream is full; None: read now.

        Streams that have been full for too long fail here.
        """
        now = time.monotonic()
        for stream_id in [stream_id for stream_id, until in self._full.items() if until <= now]:
            self.drop(self._pending[stream_id], Code.RESOURCE_EXHAUSTED, "nobody takes the stream's messages")
        return min(self._full.values()) - now if self._full else None

    def _watch(self, on_close: Callable[[], None]) -> None:
        """Wait until client or server closes the connection, have the remaining bytes read, and call `on_close`."""
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
        """Mark the connection as closed and wake all callers. If the connection was closed before, the first reason
        stays."""
        with self._state:
            if self._closed is None:
                self._closed = reason
                with contextlib.suppress(OSError):  # the peer has already disconnected
                    self._socket.shutdown(socket.SHUT_RDWR)  # wakes the threads that wait in poll
            self._state.notify_all()


def _poll(connection: socket.socket, events: int, deadline: float | None) -> bool:
    """Wait until the socket has one of the poll events or an error; return False at the deadline, and after
    _POLL_MAX_MS."""
    poller = select.poll()
    poller.register(connection, events)
    remaining = _remaining_s(deadline)
    return bool(poller.poll(None if remaining is None else min(math.ceil(max(remaining, 0) * 1000), _POLL_MAX_MS)))


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()
