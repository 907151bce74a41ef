"""The received messages of one stream, between the connection that reads them and the task that takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..inbox import PATIENCE_S, Inbox


class Queue:
    """Messages up to a bound (inbox.py), followed by an end or an error. Messages are taken first.

    `on_room` is called when a message that did not fit may be put again. `on_overflow` is called if the queue stays
    full for PATIENCE_S.
    """

    def __init__(self, on_room: Callable[[], None], on_overflow: Callable[[], None]) -> None:
        self._inbox = Inbox()
        self._on_room = on_room
        self._on_overflow = on_overflow
        self._overflow: asyncio.TimerHandle | None = None  # runs while a message does not fit
        self._changed: asyncio.Future[None] | None = None
        self._ended = False
        self.failure: Exception | None = None
        """The error with which the stream ended early; None if it runs or ended normally."""

    def put(self, payload: bytes) -> bool:
        """Add a message and return True. If the queue is full, return False; the caller puts the message again when
        `on_room` is called."""
        if self._inbox.is_full and not self.is_over:
            if self._overflow is None:
                self._overflow = asyncio.get_running_loop().call_later(PATIENCE_S, self._on_overflow)
            return False
        if not self.is_over:
            self._inbox.put(payload)
            self._wake()
        return True

    def end(self) -> None:
        """Note that no more messages come."""
        self._ended = True
        self._wake()

    def fail(self, failure: Exception) -> None:
        """End the stream early with this error. If the stream has failed before, its first error stays."""
        if self.failure is None:
            self.failure = failure
        self._wake()
        self._make_room()

    @property
    def is_over(self) -> bool:
        """Return whether the stream has ended, so that further messages are dropped."""
        return self._ended or self.failure is not None

    async def take(self) -> bytes | None:
        """Wait for the next message and return it; None at the end. Raises the error with which the stream ended early.
        A cancelled call loses no message."""
        while (payload := self._inbox.take()) is None:
            if self.failure is not None:
                raise self.failure
            if self._ended:
                return None
            if self._changed is None or self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._changed)
        self._make_room()
        return payload

    def _wake(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)

    def _make_room(self) -> None:
        if self._overflow is not None and (self.is_over or not self._inbox.is_full):
            self._overflow.cancel()
            self._overflow = None
            self._on_room()
