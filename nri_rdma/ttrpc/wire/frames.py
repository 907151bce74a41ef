"""Frames: `length u32 | stream id u32 | type u8 | flags u8 | data`, big endian."""

from __future__ import annotations

import struct
from typing import Final

from .error import ProtocolError

MESSAGE_MAX: Final = 4 << 20
"""Longest data of one frame; the peer would discard a longer one."""

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3
AFTER_MESSAGE: Final = 0x100
"""A mark that is not on the wire: the end that came in one frame with a message of that length, one frame being two
events."""

REMOTE_CLOSED: Final = 1
"""The sender will send no more data on this stream."""
REMOTE_OPEN: Final = 2
"""The sender of a Request will send data on this stream."""
NO_DATA: Final = 4
"""A Data frame without a message; one that is merely empty holds an empty message."""

HEADER: Final = struct.Struct(">IIBB")
_HEADER_SIZE = HEADER.size
_PIECE_MIN = 4096
"""Shortest piece that is kept as an object of its own; shorter pieces are joined, because each object would cost more
than its bytes."""

Frame = tuple[int, int, "bytes | None", int, int]
"""Stream id, type, data (None where the length is over MESSAGE_MAX, and AFTER_MESSAGE), length, flags."""


class OversizedMessage(ProtocolError):  # noqa: N818 - the protocol's word
    """A message of ours is longer than a frame may be. Nothing was sent; the connection is as good as before."""

    def __init__(self, length: int, maximum: int = MESSAGE_MAX) -> None:
        super().__init__(oversize_text(length, maximum))
        self.length = length
        self.maximum = maximum


def oversize_text(length: int, maximum: int = MESSAGE_MAX) -> str:
    """Return both sides' text about a message that is too long."""
    return f"message length {length} exceed maximum message size of {maximum}"


def data_frame(stream_id: int, payload: bytes) -> bytes:
    """Return the frame of one message on a stream. Raises OversizedMessage."""
    if len(payload) > MESSAGE_MAX:
        raise OversizedMessage(len(payload))
    return HEADER.pack(len(payload), stream_id, DATA, 0) + payload


def end_frame(stream_id: int) -> bytes:
    """Return the frame that ends the sender's messages on a stream."""
    return HEADER.pack(0, stream_id, DATA, REMOTE_CLOSED | NO_DATA)


class FrameReader:
    """Turns bytes into frames; the base of a connection.

    Holds the received bytes and no more; an oversized frame's data is thrown away while it comes in.
    """

    __slots__ = ("_buffer", "_discard", "_held", "_missing", "_partial", "_pieces", "_position")

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0
        self._partial = (0, 0, 0, 0)  # stream id, type, length and flags of a frame that did not come whole
        self._pieces: list[bytes | bytearray] = []  # of its data
        self._missing = 0  # bytes of it that are still to come
        self._discard = 0  # bytes to throw away before the held frame is one
        self._held: Frame | None = None

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer; parses nothing, raises nothing."""
        if self._missing:
            self._add_piece(data)
        elif self._position == len(self._buffer):
            self._buffer, self._position = data, 0
        else:
            self._buffer, self._position = self._buffer[self._position :] + data, 0

    def _next_frame(self) -> Frame | None:
        if self._held is not None:
            return self._release()
        buffer, start = self._buffer, self._position + _HEADER_SIZE
        if start > len(buffer):
            if self._position == len(buffer):
                self._buffer, self._position = b"", 0  # let a large message go while the peer is silent
            return None
        length, stream_id, kind, flags = HEADER.unpack_from(buffer, self._position)
        if length > MESSAGE_MAX:
            self._position, self._discard, self._held = start, length, (stream_id, kind, None, length, flags)
            return self._release()
        end = start + length
        if end > len(buffer):
            # Data is put together once, when all is there: each copy of a large frame costs as much as sending it.
            self._partial = stream_id, kind, length, flags
            self._pieces, self._missing = [buffer[start:]], end - len(buffer)
            self._buffer, self._position = b"", 0
            return None
        self._position = end
        return stream_id, kind, buffer[start:end], length, flags

    def _add_piece(self, data: bytes) -> None:
        rest = b""
        if len(data) > self._missing:
            data, rest = data[: self._missing], data[self._missing :]
        pieces = self._pieces
        if len(data) >= _PIECE_MIN:
            pieces.append(data)
        elif isinstance(pieces[-1], bytearray):
            pieces[-1] += data
        else:
            pieces.append(bytearray(data))
        self._missing -= len(data)
        if not self._missing:
            stream_id, kind, length, flags = self._partial
            self._held = stream_id, kind, b"".join(pieces), length, flags
            self._buffer, self._pieces = rest, []

    def _hold_end(self, stream_id: int, length: int) -> None:
        """Let AFTER_MESSAGE be the next frame."""
        self._held = stream_id, AFTER_MESSAGE, None, length, REMOTE_CLOSED

    def _release(self) -> Frame | None:
        step = min(self._discard, len(self._buffer) - self._position)
        self._position += step
        self._discard -= step
        if self._discard:
            return None
        frame, self._held = self._held, None
        return frame
