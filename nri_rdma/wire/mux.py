"""The NRI connection multiplexer: two byte streams over one socket.

A frame is `conn id u32 | length u32 | payload`, big endian. Reading takes any framing; writing keeps to the one
framing that Go peers survive. What the streams carry is ttrpc's business.
"""

from __future__ import annotations

import struct

from nri_rdma.wire.error import WireError

PLUGIN_SERVICE_CONN = 1
"""The runtime calls, the plugin serves."""
RUNTIME_SERVICE_CONN = 2
"""The plugin calls, the runtime serves."""

MAX_PAYLOAD = 10 + (4 << 20)
"""Longest payload NRI >= 0.7 writes in one frame: the largest ttrpc message with its header."""
FIRST_FRAME_MAX = 4096
"""Longest frame that may hold the start of a message. A Go peer reads it through a 4096-byte buffer, and its mux
answers anything longer with ENOMEM and closes (nri issue 102)."""
HOSTILE_LENGTH = 16 << 20
"""A claimed length above this is an attack or a lost sync: NRI <= 0.6 wrote up to 1 << 24 bytes, nobody wrote more."""

_HEADER = struct.Struct(">II")
_HEADER_SIZE = _HEADER.size
_CONNS = (PLUGIN_SERVICE_CONN, RUNTIME_SERVICE_CONN)


class MuxDecoder:
    """Cuts the trunk's bytes into pieces of the two streams.

    Payload is passed on as it comes, so nothing is allocated for a length that was only claimed; what is kept between
    calls is at most a header. Empty frames and frames of other conn ids vanish, as in Go.
    """

    __slots__ = ("_conn", "_error", "_header", "_remaining")

    def __init__(self) -> None:
        self._header = b""  # the first bytes of a header that is not complete yet
        self._conn = 0
        self._remaining = 0  # payload bytes of the current frame still to come
        self._error: WireError | None = None

    def receive_data(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return (conn id, piece) for every piece of payload in data, in order.

        Raises WireError for a hostile length, once what came before it has been returned: then at the next call,
        which needs no data. After that every call raises.
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
    """Return the frames for one whole ttrpc message, to be written to the trunk in one go.

    One frame up to FIRST_FRAME_MAX, else that many bytes and then the rest in as few frames as MAX_PAYLOAD allows:
    many small frames would overflow the 256-frame queue of a Go peer. Two messages never share a frame.
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
