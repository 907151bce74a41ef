"""A call of messages, as its caller uses it."""

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
    """Messages to a server and from it. One thread receives, one sends; they may be two.

    A context manager: leaving it tells the server that no more messages come, and drops what it still sends.
    """

    def __init__(self, channel: Channel, pending: Pending, deadline: float | None) -> None:
        self._channel = channel
        self._pending = pending
        self._deadline = deadline

    def send(self, payload: bytes) -> None:
        """Send a message; blocks while the server does not read.

        Raises RpcError for a message that is too long, with DEADLINE_EXCEEDED, and with the server's status when it has
        ended the stream with one; EOFError when it has ended the stream otherwise; ConnectionClosed; ProtocolError
        after close_send() and on a stream opened without client_streams.
        """
        self._channel.send(self._pending, payload, self._deadline)

    def close_send(self) -> None:
        """Announce that no more messages come. Raises as send() does."""
        self._channel.send(self._pending, None, self._deadline)

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the server's next message, or None at its end.

        Raises TimeoutError after timeout_s, and the stream goes on; RpcError with the server's status, or with
        DEADLINE_EXCEEDED at the stream's deadline; ConnectionClosed. What came before is returned first.
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
        """Announce that no more messages come, and return the server's one answer; b"" of a server that streams.

        Messages that were not taken are dropped. Raises as receive() does.
        """
        with contextlib.suppress(ProtocolError, EOFError):  # announced before, or no longer needed
            self.close_send()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._wait(until):
            if self._channel.take(self._pending) is None:
                self._raise_for_status()
                outcome = self._pending.outcome
                return outcome.payload if isinstance(outcome, Response) else b""
        raise TimeoutError(f"no answer within {timeout_s} s")

    def close(self) -> None:
        """Give the stream up, unless it has ended. May be repeated."""
        if self._pending.outcome is None:
            # The server then knows already.
            with contextlib.suppress(ProtocolError, EOFError, RpcError, ConnectionClosed):
                self.close_send()
            self._channel.drop(self._pending, Code.CANCELED, "given up by this client")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _wait(self, until: float | None) -> bool:
        """Wait for an event; False at `until`, and True at the stream's own deadline, which ends the stream."""
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
