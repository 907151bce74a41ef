"""The messages of one streaming call, between the reader of the connection and the handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Protocol

from .calls import Call
from .error import RpcError
from .inbox import PATIENCE_S, Inbox
from .wire import Code


class Sender(Protocol):
    """Writes the messages of a handler to the connection."""

    def send_message(self, stream: HandlerStream, payload: bytes) -> None: ...


class HandlerStream:
    """The Stream (calls.py) that a handler gets. Handlers use receive() and send(); the connection uses put(), end()
    and fail()."""

    def __init__(self, sender: Sender, stream_id: int, call: Call, *, sends: bool) -> None:
        self.stream_id = stream_id
        self._sender = sender
        self._call = call
        self._sends = sends
        self._changed = threading.Condition()  # guards all below
        self._inbox = Inbox()
        self._ended = False
        self._failure: Exception | None = None

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the caller's next message; see calls.Stream.receive()."""
        with self._changed:
            self._changed.wait_for(self._is_ready, self._patience_s(timeout_s))
            payload = self._inbox.take()
            if payload is not None:
                self._changed.notify_all()
                return payload
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
        if self._call.deadline is not None and self._call.deadline <= time.monotonic():
            raise RpcError(Code.DEADLINE_EXCEEDED, "no message before the call's deadline")
        raise TimeoutError(f"no message within {timeout_s} s")

    def send(self, payload: bytes) -> None:
        """Send a message to the caller; see calls.Stream.send()."""
        if not self._sends:
            raise RpcError(Code.INTERNAL, f"{self._call.full_method} has one answer: the handler returns it")
        self._sender.send_message(self, payload)

    def __iter__(self) -> Iterator[bytes]:
        while (payload := self.receive()) is not None:
            yield payload

    def put(self, payload: bytes) -> bool:
        """Add a received message and return True. Return False if the stream stays full for PATIENCE_S."""
        with self._changed:
            if self._inbox.is_full and not self._changed.wait_for(self._has_room, PATIENCE_S):
                return False
            self._inbox.put(payload)
            self._changed.notify_all()
        return True

    def end(self) -> None:
        """Note that the caller sends no more messages."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self, failure: Exception) -> None:
        """End the stream early with this error. If the stream has failed before, its first error stays."""
        with self._changed:
            if self._failure is None:
                self._failure = failure
            self._changed.notify_all()
        self._call.cancelled.set()

    def failure(self) -> Exception | None:
        """Return the error with which the stream ended early; None if it runs or ended normally."""
        with self._changed:
            return self._failure

    def _is_ready(self) -> bool:
        return bool(self._inbox) or self._ended or self._failure is not None

    def _has_room(self) -> bool:
        return not self._inbox.is_full or self._failure is not None

    def _patience_s(self, timeout_s: float | None) -> float | None:
        if self._call.deadline is None:
            return timeout_s
        remaining = max(0.0, self._call.deadline - time.monotonic())
        return remaining if timeout_s is None else min(timeout_s, remaining)
