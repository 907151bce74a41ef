"""The calling end of ttrpc, blocking."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from .channel import Channel
from .clientstream import ClientStream
from .endpoint import adopted, name_path
from .error import RpcError
from .outgoing import ClientInterceptor, Outgoing, through
from .wire import Code, Response


class Client:
    """Calls methods of one server; any number of threads may call at once.

    Takes a path to connect to (OSError as the kernel gives it), or a connected stream socket or its number, which is
    then the client's to close. on_close runs once, in a thread of its own, when the connection has ended for whatever
    reason, and close() waits for it; only a client that has one notices the end while nobody calls.
    """

    def __init__(
        self,
        given: str | os.PathLike[str] | socket.socket | int,
        *,
        interceptors: Sequence[ClientInterceptor] = (),
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._channel = Channel(adopted(given) if isinstance(given, socket.socket | int) else _connect(given))
        self._interceptors = tuple(interceptors)
        if on_close is not None:
            self._channel.watch(on_close)

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
        with RESOURCE_EXHAUSTED for a request that is too long to send; ConnectionClosed when the connection ends;
        ProtocolError, having done nothing, when a text is not Unicode.
        """
        call = Outgoing(service, method, payload, timeout_s, tuple(metadata))
        return through(self._interceptors, call, self._call)

    def stream(
        self,
        service: str,
        method: str,
        payload: bytes = b"",
        *,
        client_streams: bool,
        server_streams: bool,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> ClientStream:
        """Open a call of messages, as the method is declared: whether the client, whether the server sends any number.

        payload is the request of a method to which the client sends one; else leave it empty. Raises as call() does,
        but for the server's status: that is the stream's to raise.
        """
        call = Outgoing(service, method, payload, timeout_s, tuple(metadata))
        return through(self._interceptors, call, lambda call: self._open(call, client_streams, server_streams))

    def close(self) -> None:
        """Close the connection; calls that wait raise ConnectionClosed. May be repeated."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _call(self, call: Outgoing) -> bytes:
        deadline = _deadline(call)
        pending = self._channel.open(
            lambda connection: connection.request(
                call.service, call.method, call.payload, timeout_ns=_remaining_ns(deadline), metadata=call.metadata
            ),
            deadline,
        )
        try:
            self._channel.wait(pending, deadline)
        finally:
            self._channel.drop(pending, Code.DEADLINE_EXCEEDED, "no answer in time")
        response = pending.outcome
        assert isinstance(response, Response)  # End is for streams
        if response.code != Code.OK:
            raise RpcError(response.code, response.message)
        return response.payload

    def _open(self, call: Outgoing, client_streams: bool, server_streams: bool) -> ClientStream:
        deadline = _deadline(call)
        pending = self._channel.open(
            lambda connection: connection.open_stream(
                call.service,
                call.method,
                call.payload,
                client_streams=client_streams,
                server_streams=server_streams,
                timeout_ns=_remaining_ns(deadline),
                metadata=call.metadata,
            ),
            deadline,
            server_streams=server_streams,
        )
        return ClientStream(self._channel, pending, deadline)


def _connect(path: str | os.PathLike[str]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.fspath(path))
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            name_path(error, path)
        raise
    return connection


def _deadline(call: Outgoing) -> float | None:
    return None if call.timeout_s is None else time.monotonic() + call.timeout_s


def _remaining_ns(deadline: float | None) -> int:
    """Return the timeout for the request: 0 is "no deadline" there, so a deadline that is over is 1."""
    return 0 if deadline is None else max(1, int((deadline - time.monotonic()) * 1e9))
