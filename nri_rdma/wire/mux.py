"""The multiplexer of an NRI connection: two byte streams over one socket.

On one stream the runtime calls the plugin, on the other one the plugin calls the runtime. A frame is `conn id u32 |
length u32 | payload`, big endian. The decoder accepts any split into frames; the encoder splits messages only in the
way that Go peers can read. The streams carry ttrpc, which this module does not parse.
"""

from __future__ import annotations

import struct

from nri_rdma.wire.error import WireError

PLUGIN_SERVICE_CONN = 1
"""The stream on which the runtime calls the plugin."""
RUNTIME_SERVICE_CONN = 2
"""The stream on which the plugin calls the runtime."""

MAX_PAYLOAD = 10 + (4 << 20)
"""The longest payload of a frame that NRI >= 0.7 writes: the largest ttrpc message with its header."""
FIRST_FRAME_MAX = 4096
"""The longest frame that may hold the start of a message. A Go peer reads the start through a 4096-byte buffer; for a
longer frame its mux answers ENOMEM and closes the connection (nri issue 102)."""
HOSTILE_LENGTH = 16 << 20
"""The longest frame that is accepted. No version of NRI writes more than the 1 << 24 bytes of NRI 0.6 and older. So a
greater length is an attack or a lost synchronisation."""

_HEADER = struct.Struct(">II")
_HEADER_SIZE = _HEADER.size
_CONNS = (PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN)


class MuxDecoder:
    """Splits the bytes of an NRI connection into pieces of its two streams, which share one socket. On one stream the
    runtime calls the plugin, on the other one the plugin calls the runtime.

    A piece is passed on when it arrives, so memory use does not depend on the length that a frame's header claims.
    Empty frames and frames of unknown streams are dropped; Go peers drop them, too.
    """

    __slots__ = ("_conn", "_error", "_header", "_remaining")

    def __init__(self) -> None:
        self._header = b""  # the first bytes of a header that is not complete yet
        self._conn = 0
        self._remaining = 0  # payload bytes of the current frame still to come
        self._error: WireError | None = None

    def receive_data(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (conn id, bytes) for each piece of a stream in `data`, in order.

        Raises WireError if a frame's header claims more than HOSTILE_LENGTH bytes. If pieces come before that header,
        this call returns them, and each later call raises.
        """
        if not self._remaining and not self._header and len(data) > _HEADER_SIZE:
            # The common case, one receive that holds exactly one frame, costs one slice.
            conn, length = _HEADER.unpack_from(data)
            if length == len(data) - _HEADER_SIZE and conn in _CONNS and length <= HOSTILE_LENGTH:
                return [(conn, data[_HEADER_SIZE:])]
        return self._receive_any(data)

    def _receive_any(self, data: bytes) -> list[tuple[int, bytes]]:
        if self._error is not None:
            raise self._error
        pieces: list[tuple[int, bytes]] = []
        position = 0
        while position < len(data):
            if self._remaining:
                piece = data[position : position + self._remaining]
                self._remaining -= len(piece)
                position += len(piece)
                if self._conn in _CONNS:
                    pieces.append((self._conn, piece))
                continue
            rest = data[position : position + _HEADER_SIZE - len(self._header)]
            position += len(rest)
            self._header += rest
            if len(self._header) < _HEADER_SIZE:
                break
            self._conn, self._remaining = _HEADER.unpack(self._header)
            self._header = b""
            if self._remaining > HOSTILE_LENGTH:
                # _remaining stays set, which keeps the fast path closed.
                self._error = WireError(
                    f"mux frame of conn {self._conn} claims {self._remaining} bytes, at most {HOSTILE_LENGTH} are read"
                )
                break
        if self._error is not None and not pieces:
            raise self._error
        return pieces


def encode_message(conn_id: int, message: bytes) -> bytes:
    """Return the frames of one whole ttrpc message, to be written to the connection in one go.

    A message of up to FIRST_FRAME_MAX bytes is one frame. A longer one starts with a frame of this size; the rest is
    split into as few frames as MAX_PAYLOAD permits, because many small frames would overflow the 256-frame queue of a
    Go peer. Two messages never share a frame.
    """
    if conn_id not in _CONNS:
        raise WireError(f"mux conn {conn_id} does not exist, only {PLUGIN_SERVICE_CONN} and {RUNTIME_SERVICE_CONN}")
    if len(message) <= FIRST_FRAME_MAX:
        return _HEADER.pack(conn_id, len(message)) + message
    frames = [_HEADER.pack(conn_id, FIRST_FRAME_MAX), message[:FIRST_FRAME_MAX]]
    for start in range(FIRST_FRAME_MAX, len(message), MAX_PAYLOAD):
        piece = message[start : start + MAX_PAYLOAD]
        frames += (_HEADER.pack(conn_id, len(piece)), piece)
    return b"".join(frames)
