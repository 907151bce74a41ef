"""A streaming call, as its caller uses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from .channel import Channel, Pending
from .error import ConnectionClosed, RpcError
from .wire import Code, Response
from .wire.error import ProtocolError


class ClientStream:
    """The messages of a streaming call, to and from the server. One thread may send, and another one may receive.

    As a context manager, it abandons the stream on exit, unless the stream has ended: no more messages are sent, and
    messages that still come from the server are dropped.
    """

    def __init__(self, channel: Channel, pending: Pending, deadline: float | None) -> None:
        self._channel = channel
        self._pending = pending
        self._deadline = deadline

    def send(self, payload: bytes) -> None:
        """Send a message. Blocks while the server does not read.

        Raises RpcError if the message is too long, at the deadline, and with the server's status if the server ended
        the stream with an error. Raises EOFError if the server ended the stream normally. Raises ConnectionClosed if
        the connection ends. Raises ProtocolError after close_send(), and on a stream without client_streams.
        """
        self._channel.send(self._pending, payload, self._deadline)

    def close_send(self) -> None:
        """Tell the server that no more messages come. Raises the errors of send()."""
        self._channel.send(self._pending, None, self._deadline)

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the server's next message; None after the last one. Messages that arrived before an error are returned
        first.

        Raises TimeoutError after timeout_s seconds; the stream stays usable. Raises RpcError with the server's status,
        or with DEADLINE_EXCEEDED at the stream's deadline. Raises ConnectionClosed if the connection ends.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        if not self._wait(until):
            raise TimeoutError(f"no message within {timeout_s} s")
        payload = self._channel.take(self._pending)
        if payload is None:
            self._raise_for_status()
        return payload

    def __iter__(self) -> Iterator[bytes]:
        while (payload := self.receive()) is not None:
            yield payload

    def result(self, timeout_s: float | None = None) -> bytes:
        """Tell the server that no more messages come, and return its only answer; b"" if the server streams.

        Messages that were not received before are dropped. Raises the errors of receive().
        """
        with contextlib.suppress(ProtocolError, EOFError):  # already sent, or no longer needed
            self.close_send()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._wait(until):
            if self._channel.take(self._pending) is None:
                self._raise_for_status()
                outcome = self._pending.outcome
                return outcome.payload if isinstance(outcome, Response) else b""
        raise TimeoutError(f"no answer within {timeout_s} s")

    def close(self) -> None:
        """Abandon the stream, unless it has ended. Calling it twice is allowed."""
        if self._pending.outcome is None:
            # After these errors the server already knows that nothing more comes.
            with contextlib.suppress(ProtocolError, EOFError, RpcError, ConnectionClosed):
                self.close_send()
            self._channel.drop(self._pending, Code.CANCELED, "given up by this client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _wait(self, until: float | None) -> bool:
        """Wait until a message has arrived or the stream has ended; return False at the time `until`. If the stream's
        own deadline comes first, end the stream and return True."""
        own = self._deadline is not None and (until is None or self._deadline <= until)
        if self._channel.wait(self._pending, self._deadline if own else until):
            return True
        if own:
            self._channel.drop(self._pending, Code.DEADLINE_EXCEEDED, "no answer in time")
        return own

    def _raise_for_status(self) -> None:
        outcome = self._pending.outcome
        if isinstance(outcome, Response) and outcome.code != Code.OK:
            raise RpcError(outcome.code, outcome.message)
