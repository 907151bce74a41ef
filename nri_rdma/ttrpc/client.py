"""A blocking ttrpc client."""

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
    """A client of one server. Any number of threads may call at the same time.

    `given` is the path of a Unix socket, or a connected stream socket or its file descriptor, which the client then
    owns. Connecting raises OSError.

    If `on_close` is given, a thread calls it once when the connection has ended for any reason, and close() waits for
    that thread. A client without `on_close` notices the end of the connection only at its next call.
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
        """Make a unary call, and return the payload of the answer.

        Raises RpcError with the server's status, with DEADLINE_EXCEEDED after timeout_s seconds (None: wait for ever),
        or with RESOURCE_EXHAUSTED if the request is too long. Raises ConnectionClosed if the connection ends. Raises
        ProtocolError, without sending anything, if a text is not valid Unicode.
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
        """Open a streaming call. client_streams and server_streams say who may send any number of messages; they must
        agree with the method's declaration.

        payload is the request if the client sends exactly one message; otherwise leave it empty. Raises the errors of
        call(), except for the server's status, which the stream raises.
        """
        call = Outgoing(service, method, payload, timeout_s, tuple(metadata))
        return through(self._interceptors, call, lambda call: self._open(call, client_streams, server_streams))

    def close(self) -> None:
        """Close the connection; waiting calls raise ConnectionClosed. Calling it twice is allowed."""
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
        assert isinstance(response, Response)  # only streams have an End
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
    """Return the timeout to send, in nanoseconds. In the protocol 0 means "no deadline", so a deadline that has passed
    becomes 1."""
    return 0 if deadline is None else max(1, int((deadline - time.monotonic()) * 1e9))
