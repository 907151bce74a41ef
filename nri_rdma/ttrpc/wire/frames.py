"""Frames: `length u32 | stream id u32 | type u8 | flags u8 | data`, big-endian."""

from __future__ import annotations

import struct
from typing import Final

from .error import ProtocolError

MESSAGE_MAX: Final = 4 << 20
"""Maximum length of a frame's data. A peer discards longer frames."""

REQUEST: Final = 1
RESPONSE: Final = 2
DATA: Final = 3
AFTER_MESSAGE: Final = 0x100
"""The type of a pseudo-frame that is never sent. A received frame with a message may also end its stream; the reader
then returns the message, and after it this pseudo-frame for the end. Its length is that of the message."""

REMOTE_CLOSED: Final = 1
"""Flag: the sender sends no more data on this stream."""
REMOTE_OPEN: Final = 2
"""Flag: the sender of the Request will send data on this stream."""
NO_DATA: Final = 4
"""Flag: the Data frame has no message. Without the flag, an empty Data frame has an empty message."""

HEADER: Final = struct.Struct(">IIBB")
_HEADER_SIZE = HEADER.size
_PIECE_MIN = 4096
"""Minimum size of a received piece that is kept as its own bytes object. Shorter pieces are joined, because an object
costs more than their content."""

Frame = tuple[int, int, "bytes | None", int, int]
"""Stream id, type, data, length, flags. The data is None if the length exceeds MESSAGE_MAX, and if the type is
AFTER_MESSAGE."""


class OversizedMessage(ProtocolError):  # noqa: N818 - the protocol's word
    """A message to send exceeds MESSAGE_MAX. Nothing was sent, and the connection is unchanged."""

    def __init__(self, length: int, maximum: int = MESSAGE_MAX) -> None:
        super().__init__(oversize_text(length, maximum))
        self.length = length
        self.maximum = maximum


def oversize_text(length: int, maximum: int = MESSAGE_MAX) -> str:
    """Return the error text for a message that is too long. Both client and server use this text."""
    return f"message length {length} exceed maximum message size of {maximum}"


def data_frame(stream_id: int, payload: bytes) -> bytes:
    """Return the frame of a message on a stream. Raises OversizedMessage if the message is longer than MESSAGE_MAX."""
    if len(payload) > MESSAGE_MAX:
        raise OversizedMessage(len(payload))
    return HEADER.pack(len(payload), stream_id, DATA, 0) + payload


def end_frame(stream_id: int) -> bytes:
    """Return the frame that ends the sender's messages on a stream."""
    return HEADER.pack(0, stream_id, DATA, REMOTE_CLOSED | NO_DATA)


class FrameReader:
    """Splits received bytes into frames; the base class of ClientConnection and ServerConnection.

    It stores only the bytes of incomplete frames. The data of an oversized frame is discarded as it arrives.
    """

    __slots__ = ("_buffer", "_discard", "_held", "_missing", "_partial", "_pieces", "_position")

    def __init__(self) -> None:
        self._buffer = b""
        self._position = 0
        self._partial = (0, 0, 0, 0)  # stream id, type, length and flags of an incomplete frame
        self._pieces: list[bytes | bytearray] = []  # its data so far
        self._missing = 0  # number of its bytes that are still to come
        self._discard = 0  # bytes to discard before the held frame is returned
        self._held: Frame | None = None

    def receive_data(self, data: bytes) -> None:
        """Store bytes from the peer. Parses nothing and raises nothing."""
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
                self._buffer, self._position = b"", 0  # free a large message while the peer is silent
            return None
        length, stream_id, kind, flags = HEADER.unpack_from(buffer, self._position)
        if length > MESSAGE_MAX:
            self._position, self._discard, self._held = start, length, (stream_id, kind, None, length, flags)
            return self._release()
        end = start + length
        if end > len(buffer):
            # Data is joined once, when it is complete: each copy of a large frame costs as much as sending it.
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
        """Make the end of a stream the next result of the reader, after a message that came in one frame with the end.
        The result is a pseudo-frame of type AFTER_MESSAGE; `length` is the length of the message."""
        self._held = stream_id, AFTER_MESSAGE, None, length, REMOTE_CLOSED

    def _release(self) -> Frame | None:
        step = min(self._discard, len(self._buffer) - self._position)
        self._position += step
        self._discard -= step
        if self._discard:
            return None
        frame, self._held = self._held, None
        return frame
