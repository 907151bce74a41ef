"""The calling end of a ttrpc connection, blocking.

There is no thread behind it: of the callers that wait, one at a time reads and hands the others their answers. So a
lone caller pays no thread switch, and nothing needs to be joined. A call that was sent only in part closes the
connection, as does anything that breaks the protocol: a connection is thrown away, never mended.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import threading
import time
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from nri_rdma.ttrpc.error import ConnectionClosed, RpcError
from nri_rdma.wire.ttrpc import ClientConnection, Code, OversizedMessage, Response

_RECEIVE_SIZE = 64 << 10


class Client:
    """Calls methods of one server; any number of threads may call at once.

    Takes a path to connect to (OSError as the kernel gives it), or a connected stream socket, which is then the
    client's to close.
    """

    def __init__(self, path_or_socket: str | os.PathLike[str] | socket.socket) -> None:
        self._socket = path_or_socket if isinstance(path_or_socket, socket.socket) else _connect(path_or_socket)
        self._socket.setblocking(False)
        self._connection = ClientConnection()
        self._sending = threading.Lock()  # held from the choice of a stream id until its frame is written
        self._state = threading.Condition()  # guards all below and the connection's tables
        self._answers: dict[int, Response | None] = {}  # by stream; None while the caller waits
        self._reading = False  # one of the waiting callers is in _receive()
        self._closed: str | None = None  # why

    def call(
        self,
        service: str,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        """Return the answer's payload.

        Raises RpcError with the server's status, or with DEADLINE_EXCEEDED after timeout_s (None waits for ever), or
        with RESOURCE_EXHAUSTED for a request that is too long to send; ConnectionClosed when the connection ends.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        stream_id = self._send(service, method, payload, deadline, metadata)
        response = self._wait(stream_id, deadline)
        if response.code != Code.OK:
            raise RpcError(response.code, response.message)
        return response.payload

    def close(self) -> None:
        """Close the connection; calls that wait raise ConnectionClosed. May be repeated."""
        self._fail("closed by this client")
        with self._sending, self._state:  # both threads that may be using the descriptor have left it
            self._state.wait_for(lambda: not self._reading)
            self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _send(
        self, service: str, method: str, payload: bytes, deadline: float | None, metadata: Iterable[tuple[str, str]]
    ) -> int:
        remaining = _remaining_s(deadline)
        if not self._sending.acquire(timeout=-1 if remaining is None else max(remaining, 0)):
            raise RpcError(Code.DEADLINE_EXCEEDED, "request not sent in time: another one is being written")
        try:
            stream_id, data = self._open_stream(service, method, payload, deadline, metadata)
            try:
                self._write(data, deadline)
            except BaseException:
                with self._state:
                    del self._answers[stream_id]
                raise
        finally:
            self._sending.release()
        return stream_id

    def _open_stream(
        self, service: str, method: str, payload: bytes, deadline: float | None, metadata: Iterable[tuple[str, str]]
    ) -> tuple[int, bytes]:
        with self._state:
            self._raise_if_closed()
            try:
                stream_id, data = self._connection.request(
                    service, method, payload, timeout_ns=_remaining_ns(deadline), metadata=metadata
                )
            except OversizedMessage as exc:
                raise RpcError(Code.RESOURCE_EXHAUSTED, str(exc)) from exc
            self._answers[stream_id] = None
            return stream_id, data

    def _write(self, data: bytes, deadline: float | None) -> None:
        view, reason = memoryview(data), "a request was sent in part"
        try:
            while view:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    if not _poll(self._socket, select.POLLOUT, deadline):
                        raise RpcError(Code.DEADLINE_EXCEEDED, "request not sent in time; connection closed") from None
        except OSError as exc:
            reason = f"send failed: {exc}"
            raise ConnectionClosed(f"ttrpc connection: {reason}") from exc
        finally:
            if view:
                self._fail(reason)

    def _wait(self, stream_id: int, deadline: float | None) -> Response:
        """Return the stream's answer, reading for everybody whenever nobody else does."""
        with self._state:
            try:
                while (response := self._answers[stream_id]) is None:
                    self._raise_if_closed()
                    remaining = _remaining_s(deadline)
                    if remaining is not None and remaining <= 0:
                        self._connection.forget(stream_id)
                        raise RpcError(Code.DEADLINE_EXCEEDED, "no answer in time")
                    if self._reading:
                        self._state.wait(remaining)
                    else:
                        self._read_once(deadline)
                return response
            finally:
                del self._answers[stream_id]
                self._state.notify_all()  # whoever waits may have to take over the reading

    def _read_once(self, deadline: float | None) -> None:
        """Receive without the lock, then hand out what came."""
        self._reading = True
        self._state.release()
        data: bytes | None = None
        reason = "closed by the peer"
        try:
            data = self._socket.recv(_RECEIVE_SIZE) if _poll(self._socket, select.POLLIN, deadline) else None
        except BlockingIOError:
            data = None
        except OSError as exc:
            data, reason = b"", f"receive failed: {exc}"
        finally:
            self._state.acquire()
            self._reading = False
        if data == b"":
            self._fail(reason)
        elif data:
            self._connection.receive_data(data)
            while (response := self._connection.next_event()) is not None:
                if isinstance(response, Response) and response.stream_id in self._answers:
                    self._answers[response.stream_id] = response
            self._state.notify_all()

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


def _connect(path: str | os.PathLike[str]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.fspath(path))
    except BaseException:
        connection.close()
        raise
    return connection


def _poll(connection: socket.socket, event: int, deadline: float | None) -> bool:
    """Wait until the socket is ready, or broken, for the event; False when the deadline came first."""
    poller = select.poll()
    poller.register(connection, event)
    remaining = _remaining_s(deadline)
    return bool(poller.poll(None if remaining is None else math.ceil(max(remaining, 0) * 1000)))


def _remaining_s(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


def _remaining_ns(deadline: float | None) -> int:
    """What the request says: 0 is "no deadline" there, so one that is over says 1."""
    remaining = _remaining_s(deadline)
    return 0 if remaining is None else max(1, int(remaining * 1e9))
