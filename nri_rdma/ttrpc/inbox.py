"""The received messages of one stream that the program has not taken yet.

With ttrpc a peer cannot be told to wait with one stream only. So the reader of a connection waits up to PATIENCE_S for
a full stream, and then fails that stream, not the connection. The Go implementation does this with 64 messages; here
the bound is in bytes.
"""

from __future__ import annotations

from collections import deque
from typing import Final

FULL: Final = 1 << 20
"""Size in bytes from which a stream is full, counting OVERHEAD for each message. A message that makes it full is still
accepted, so a stream holds at most this size plus the longest message."""
OVERHEAD: Final = 64
"""Bytes that are counted for each message in addition to its payload."""
PATIENCE_S: Final = 1.0
"""How long, in seconds, the reader of a connection waits for a full stream before the stream fails."""


class Inbox:
    """A queue of messages that reports when it is full. It accepts messages even then, so its owner must stop adding
    them. It has no lock."""

    __slots__ = ("_messages", "_size")

    def __init__(self) -> None:
        self._messages = deque[bytes]()
        self._size = 0

    def put(self, payload: bytes) -> None:
        self._messages.append(payload)
        self._size += len(payload) + OVERHEAD

    def take(self) -> bytes | None:
        """Return the oldest message; None if there is none."""
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
