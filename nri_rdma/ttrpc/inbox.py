"""Messages of one stream that were received and are not taken yet.

ttrpc has no way to let a peer wait for one stream. So the reader of a connection waits for a stream that is full, for
PATIENCE_S, and then gives the stream up, not the connection: what Go does with 64 messages, here with bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FULL: Final = 1 << 20
"""Bytes of messages, OVERHEAD for each included, from which on a stream is full. One more message may be on its way in,
so that a stream holds at most this and the longest message."""
OVERHEAD: Final = 64
"""The cost of a message beside its bytes."""
PATIENCE_S: Final = 1.0
"""Longest wait of a connection's reader for a stream that is full; then the stream fails."""


class Inbox:
    """A queue that knows when it is full. It refuses nothing and has no lock: both are its owner's."""

    __slots__ = ("_messages", "_size")

    def __init__(self) -> None:
        self._messages = deque[bytes]()
        self._size = 0

    def put(self, payload: bytes) -> None:
        self._messages.append(payload)
        self._size += len(payload) + OVERHEAD

    def take(self) -> bytes | None:
        """Return the oldest message, or None when there is none."""
        if not self._messages:
            return None
        payload = self._messages.popleft()
        self._size -= len(payload) + OVERHEAD
        return payload

    @property
    def is_full(self) -> bool:
        return self._size >= FULL

    def __len__(self) -> int:
        return len(self._messages)
