"""The ttrpc protocol, unary calls: frames to requests and responses, and back.

One connection object per direction of a byte stream, h11-like: receive_data() buffers, next_event() parses, the
methods that send return bytes to write. A frame is `length u32 | stream id u32 | type u8 | flags u8 | data`, big
endian. Mistakes of the peer cost the peer one stream, never the connection; the answers are those of the Go server.
Reading, writing, time-outs and what a method means are left to the callers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from nri_rdma.pb import ttrpc_pb2 as pb
from nri_rdma.wire.error import WireError

MESSAGE_MAX: Final = 4 << 20
"""Longest data of one frame; the peer would throw a longer one away."""

_parse_request = pb.Request.FromString  # bound once: the look-up goes through protobuf's metaclass each time

_HEADER = struct.Struct(">IIBB")
_HEADER_SIZE = _HEADER.size
_REQUEST, _RESPONSE, _DATA = 1, 2, 3
_STREAM_ID_LAST = 0xFFFFFFFF
_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

_TEXT_MAX = 16 << 10
"""Longest error text we send: far more than anyone shows, and a failure never fails for being too long."""


class Code(IntEnum):
    """Status codes, as gRPC numbers them."""

    OK = 0
    CANCELED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class OversizedMessage(WireError):  # noqa: N818 - the protocol's word
    """A message of ours is longer than a frame may be. Nothing was sent; the connection is as good as before."""

    def __init__(self, length: int, maximum: int = MESSAGE_MAX) -> None:
        super().__init__(_oversize_text(length, maximum))
        self.length = length
        self.maximum = maximum


class Request:
    """One call of the peer; fields are read out of the decoded message when somebody asks.

    A frozen dataclass in spirit; filling one would add 1.6 us to the 1.2 us in which a frame becomes an event.
    """

    __slots__ = ("_message", "stream_id")

    def __init__(self, stream_id: int, message: pb.Request) -> None:
        self.stream_id = stream_id
        self._message = message

    @property
    def service(self) -> str:
        """Full name of the service, such as nri.pkg.api.v1alpha1.Plugin."""
        service: str = self._message.service
        return service

    @property
    def method(self) -> str:
        """Bare name of the method, such as Configure."""
        method: str = self._message.method
        return method

    @property
    def payload(self) -> bytes:
        """The call's argument, not decoded. A fresh copy at each access."""
        payload: bytes = self._message.payload
        return payload

    @property
    def timeout_ns(self) -> int:
        """What was left of the caller's deadline when it sent; 0 = none, below 0 = already over."""
        timeout_ns: int = self._message.timeout_nano
        return timeout_ns

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Key-value pairs in the order sent, keys in lower case, repeated keys kept."""
        return tuple((pair.key.lower(), pair.value) for pair in self._message.metadata)

    def metadata_value(self, key: str) -> str:
        """The first value of a key (in lower case), "" when there is none."""
        for pair in self._message.metadata:
            if pair.key.lower() == key:
                value: str = pair.value
                return value
        return ""

    def __repr__(self) -> str:
        size = len(self._message.payload)
        return f"Request(stream_id={self.stream_id}, {self.service}/{self.method}, {size} bytes)"


@dataclass(frozen=True, slots=True)
class Rejected:
    """A stream that broke the protocol: send reply; there is no call to handle."""

    stream_id: int
    reply: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """The answer to one call of ours; code 0 = OK, and the payload may well be empty."""

    stream_id: int
    code: int
    message: str
    payload: bytes


class ServerConnection:
    """The serving end of one byte stream.

    After each receive_data() call next_event() until it returns None, else the buffer grows. A stream is open from its
    Request until respond() or fail(); these may be called from another thread than the reader's.
    """

    __slots__ = ("_frames", "_last_stream_id", "_open")

    def __init__(self) -> None:
        self._frames = _FrameReader()
        self._last_stream_id = 0
        self._open: set[int] = set()

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer; parses nothing, raises nothing."""
        self._frames.feed(data)

    def next_event(self) -> Request | Rejected | None:
        """Return the next call, the next protocol error with its ready-made answer, or None for "need more data"."""
        while (frame := self._frames.next()) is not None:
            stream_id, kind, data, length = frame
            if data is None:
                return _reject(stream_id, Code.RESOURCE_EXHAUSTED, _oversize_text(length, MESSAGE_MAX))
            if not stream_id & 1:
                return _reject(stream_id, Code.INVALID_ARGUMENT, "StreamID must be odd for client initiated streams")
            if kind == _REQUEST:
                return self._request(stream_id, data)
            if kind == _DATA:  # unary calls take no data, so no stream is ever open for it
                return _reject(stream_id, Code.INVALID_ARGUMENT, "StreamID is no longer active")
        return None

    def respond(self, stream_id: int, payload: bytes) -> bytes:
        """Return the answer to write. A payload too long for a frame becomes RESOURCE_EXHAUSTED, as in fail().

        Raises WireError when the stream is not open: unknown, or answered already.
        """
        self._close(stream_id)
        answer = _ok_response(stream_id, payload)
        if answer is None:
            return _failed_response(stream_id, Code.RESOURCE_EXHAUSTED, _oversize_text(len(payload), MESSAGE_MAX))
        return answer

    def fail(self, stream_id: int, code: int, message: str) -> bytes:
        """Return the error to write: never OK whatever code says, and message cut where it is absurdly long.

        Raises WireError when the stream is not open: unknown, or answered already.
        """
        self._close(stream_id)
        return _failed_response(stream_id, code, message)

    def _request(self, stream_id: int, data: bytes) -> Request | Rejected:
        if stream_id <= self._last_stream_id:
            return _reject(stream_id, Code.INVALID_ARGUMENT, "StreamID cannot be re-used and must increment")
        self._last_stream_id = stream_id
        try:
            message = _parse_request(data)
        except DecodeError as exc:
            return _reject(stream_id, Code.INVALID_ARGUMENT, f"unmarshal request error: {exc}")
        self._open.add(stream_id)
        return Request(stream_id, message)

    def _close(self, stream_id: int) -> None:
        try:
            self._open.remove(stream_id)
        except KeyError:
            raise WireError(f"ttrpc stream {stream_id} is not open: unknown, or answered already") from None


class ClientConnection:
    """The calling end of one byte stream.

    Ids must reach the wire in order: hold one lock around request() and the write of its bytes. After each
    receive_data() call next_event() until it returns None.
    """

    __slots__ = ("_frames", "_next_stream_id", "_pending")

    def __init__(self) -> None:
        self._frames = _FrameReader()
        self._next_stream_id = 1
        self._pending: set[int] = set()

    def request(
        self,
        service: str,
        method: str,
        payload: bytes,
        *,
        timeout_ns: int = 0,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> tuple[int, bytes]:
        """Return the new call's stream id and the bytes to write.

        Raises OversizedMessage when it does not fit a frame, WireError when a text is not Unicode or the ids of this
        connection are used up; nothing has happened then.
        """
        stream_id = self._next_stream_id
        if stream_id > _STREAM_ID_LAST:
            raise WireError("ttrpc stream ids are used up: open a new connection")
        timeout_ns = max(-_INT64_MAX, min(timeout_ns, _INT64_MAX))
        try:
            message = pb.Request(service=service, method=method, payload=payload, timeout_nano=timeout_ns)
            for key, value in metadata:
                message.metadata.add(key=key.lower(), value=value)
            data: bytes = message.SerializeToString()
        except ValueError as exc:
            raise WireError(f"ttrpc request {service}/{method} holds text that is not Unicode") from exc
        if len(data) > MESSAGE_MAX:
            raise OversizedMessage(len(data))
        self._next_stream_id += 2
        self._pending.add(stream_id)
        return stream_id, _HEADER.pack(len(data), stream_id, _REQUEST, 0) + data

    def forget(self, stream_id: int) -> None:
        """Give up on a call: its late answer will be dropped. The protocol has no way to tell the peer."""
        self._pending.discard(stream_id)

    def receive_data(self, data: bytes) -> None:
        """Take bytes of the peer; parses nothing, raises nothing."""
        self._frames.feed(data)

    def next_event(self) -> Response | None:
        """Return the next answer to a call that waits for one, or None for "need more data".

        What cannot be an answer (too long, not decodable, a data frame) fails its own call only.
        """
        while (frame := self._frames.next()) is not None:
            stream_id, kind, data, length = frame
            if stream_id not in self._pending or kind not in (_REQUEST, _RESPONSE, _DATA):
                continue
            self._pending.discard(stream_id)
            if data is None:
                return Response(stream_id, Code.RESOURCE_EXHAUSTED, _oversize_text(length, MESSAGE_MAX), b"")
            if kind != _RESPONSE:
                return Response(stream_id, Code.INTERNAL, f"protocol error: frame of type {kind} for a unary call", b"")
            return _decode_response(stream_id, data)
        return None


class _FrameReader:
    """Bytes to frames (stream id, type, data, length); data is None where length is over MESSAGE_MAX.

    Holds what was received and no more; an oversized frame's data is thrown away while it comes in.
    """

    __slots__ = ("_buffer", "_discard", "_oversized", "_position")

    def __init__(self) -> None:
        self._buffer: bytes | bytearray = b""  # bytes as received; a bytearray once a frame spans pieces
        self._position = 0
        self._discard = 0
        self._oversized: tuple[int, int, None, int] | None = None

    def feed(self, data: bytes) -> None:
        if self._position == len(self._buffer):
            self._buffer, self._position = data, 0
            return
        if not isinstance(self._buffer, bytearray):
            self._buffer = bytearray(self._buffer)
        del self._buffer[: self._position]
        self._position = 0
        self._buffer += data

    def next(self) -> tuple[int, int, bytes | None, int] | None:
        if self._oversized is not None:
            return self._skip()
        buffer, start = self._buffer, self._position + _HEADER_SIZE
        if start > len(buffer):
            if self._position == len(buffer):
                self._buffer, self._position = b"", 0  # let a large message go while the peer is silent
            return None
        length, stream_id, kind, _flags = _HEADER.unpack_from(buffer, self._position)
        if length > MESSAGE_MAX:
            self._position, self._discard, self._oversized = start, length, (stream_id, kind, None, length)
            return self._skip()
        end = start + length
        if end > len(buffer):
            return None
        self._position = end
        data = buffer[start:end] if isinstance(buffer, bytes) else bytes(memoryview(buffer)[start:end])
        return stream_id, kind, data, length

    def _skip(self) -> tuple[int, int, None, int] | None:
        step = min(self._discard, len(self._buffer) - self._position)
        self._position += step
        self._discard -= step
        if self._discard:
            return None
        frame, self._oversized = self._oversized, None
        return frame


def _reject(stream_id: int, code: Code, text: str) -> Rejected:
    return Rejected(stream_id, _failed_response(stream_id, code, text))


_HEADER_AND_TAG_1 = struct.Struct(">IIBBBB")  # payload shorter than 128 bytes
_HEADER_AND_TAG_2 = struct.Struct(">IIBBBBB")  # shorter than 16384
_PAYLOAD_TAG = 2 << 3 | 2


def _ok_response(stream_id: int, payload: bytes) -> bytes | None:
    """Return the frame of pb.Response(payload=payload), or None when that is too long.

    Written by hand up to 16 KiB: it is on every event's path and costs a third of what protobuf takes. The tests hold
    both to the same bytes.
    """
    size = len(payload)
    if not size:
        return _HEADER.pack(0, stream_id, _RESPONSE, 0)
    if size < 1 << 7:
        return _HEADER_AND_TAG_1.pack(size + 2, stream_id, _RESPONSE, 0, _PAYLOAD_TAG, size) + payload
    if size < 1 << 14:
        low, high = size & 0x7F | 0x80, size >> 7
        return _HEADER_AND_TAG_2.pack(size + 3, stream_id, _RESPONSE, 0, _PAYLOAD_TAG, low, high) + payload
    if size > MESSAGE_MAX:
        return None
    data: bytes = pb.Response(payload=payload).SerializeToString()
    if len(data) > MESSAGE_MAX:
        return None
    return _HEADER.pack(len(data), stream_id, _RESPONSE, 0) + data


def _failed_response(stream_id: int, code: int, text: str) -> bytes:
    if not 0 < code <= _INT32_MAX:  # a failure never leaves as OK
        code = Code.UNKNOWN
    # Lone surrogates come from file names that are not UTF-8.
    clean = text[:_TEXT_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
    data: bytes = pb.Response(status=pb.Status(code=code, message=clean)).SerializeToString()
    return _HEADER.pack(len(data), stream_id, _RESPONSE, 0) + data


def _decode_response(stream_id: int, data: bytes) -> Response:
    try:
        message = pb.Response.FromString(data)
    except DecodeError as exc:
        return Response(stream_id, Code.INTERNAL, f"unmarshal response error: {exc}", b"")
    return Response(stream_id, message.status.code, message.status.message, message.payload)


def _oversize_text(length: int, maximum: int) -> str:
    return f"message length {length} exceed maximum message size of {maximum}"
