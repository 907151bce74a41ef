"""The content of Request and Response frames, and the status codes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from ..pb import ttrpc_pb2 as pb
from .error import ProtocolError
from .events import Response
from .frames import HEADER, MESSAGE_MAX, REQUEST, RESPONSE, OversizedMessage

decode_request: Final = pb.Request.FromString  # bound once: each look-up goes through protobuf's metaclass
"""Decodes the data of a Request frame. Raises DecodeError."""
_decode_response = pb.Response.FromString

_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

_TEXT_MAX = 16 << 10
"""Maximum length in characters of an error text that is sent. A longer text is cut, so that an error always fits into a
frame."""


class Code(IntEnum):
    """The status codes of gRPC."""

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


def request_frame(
    stream_id: int,
    flags: int,
    service: str,
    method: str,
    payload: bytes,
    timeout_ns: int,
    metadata: Iterable[tuple[str, str]],
) -> bytes:
    """Return the frame that opens a stream. Raises OversizedMessage if the request is too long, and ProtocolError if a
    text is not valid Unicode."""
    timeout_ns = max(-_INT64_MAX, min(timeout_ns, _INT64_MAX))
    small = len(payload) < _LARGE
    try:
        message = pb.Request(service=service, method=method, timeout_nano=timeout_ns)
        if small:
            message.payload = payload
        for key, value in metadata:
            message.metadata.add(key=key.lower(), value=value)
        data: bytes = message.SerializeToString()
    except ValueError as exc:
        raise ProtocolError(f"ttrpc request {service}/{method} holds text that is not Unicode") from exc
    if not small:
        return _with_payload(stream_id, REQUEST, flags, data, _REQUEST_PAYLOAD_TAG, payload)
    if len(data) > MESSAGE_MAX:
        raise OversizedMessage(len(data))
    return HEADER.pack(len(data), stream_id, REQUEST, flags) + data


_LARGE = 1 << 14
"""Length in bytes from which a payload is appended to the encoded message without protobuf. Protobuf takes 2 ms for 1
MiB, appending takes 0.03 ms."""

_HEADER_AND_TAG_1 = struct.Struct(">IIBBBB")  # payload shorter than 128 bytes
_HEADER_AND_TAG_2 = struct.Struct(">IIBBBBB")  # shorter than 16384
_PAYLOAD_TAG = 2 << 3 | 2
_REQUEST_PAYLOAD_TAG = 3 << 3 | 2


def ok_response(stream_id: int, payload: bytes) -> bytes | None:
    """Return the frame of pb.Response(payload=payload); None if it is too long.

    It is encoded without protobuf, which takes three times as long, because every answer needs it. Tests compare the
    bytes with protobuf's.
    """
    size = len(payload)
    if not size:
        return HEADER.pack(0, stream_id, RESPONSE, 0)
    if size < 1 << 7:
        return _HEADER_AND_TAG_1.pack(size + 2, stream_id, RESPONSE, 0, _PAYLOAD_TAG, size) + payload
    if size < _LARGE:
        low, high = size & 0x7F | 0x80, size >> 7
        return _HEADER_AND_TAG_2.pack(size + 3, stream_id, RESPONSE, 0, _PAYLOAD_TAG, low, high) + payload
    try:
        return _with_payload(stream_id, RESPONSE, 0, b"", _PAYLOAD_TAG, payload)
    except OversizedMessage:
        return None


def _with_payload(stream_id: int, kind: int, flags: int, rest: bytes, tag: int, payload: bytes) -> bytes:
    """Return the frame of a message with a large payload. `rest` are the encoded bytes of the message's other fields;
    `tag` is the protobuf tag of the payload. Raises OversizedMessage."""
    prefix, left = [tag], len(payload)
    while left > 0x7F:
        prefix.append(left & 0x7F | 0x80)
        left >>= 7
    prefix.append(left)
    length = len(rest) + len(prefix) + len(payload)
    if length > MESSAGE_MAX:
        raise OversizedMessage(length)
    return b"".join((HEADER.pack(length, stream_id, kind, flags), rest, bytes(prefix), payload))


def failed_response(stream_id: int, code: int, text: str) -> bytes:
    if not 0 < code <= _INT32_MAX:  # an error must not have the code OK
        code = Code.UNKNOWN
    # Lone surrogates come from file names that are not UTF-8.
    clean = text[:_TEXT_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
    data: bytes = pb.Response(status=pb.Status(code=code, message=clean)).SerializeToString()
    return HEADER.pack(len(data), stream_id, RESPONSE, 0) + data


def read_response(stream_id: int, data: bytes) -> Response:
    if len(data) > _LARGE and (payload := _only_payload(data)) is not None:
        return Response(stream_id, Code.OK, "", payload)
    try:
        message = _decode_response(data)
    except DecodeError as exc:
        return Response(stream_id, Code.INTERNAL, f"unmarshal response error: {exc}", b"")
    return Response(stream_id, message.status.code, message.status.message, message.payload)


def _only_payload(data: bytes) -> bytes | None:
    """Return the payload of a large Response that has no other field; None if protobuf has to decode the Response.

    Protobuf would copy the payload twice. `data` has at least 16 KiB.
    """
    if data[0] != _PAYLOAD_TAG:
        return None
    size = shift = 0
    for position in range(1, 5):  # a length up to MESSAGE_MAX has at most 4 bytes
        size |= (data[position] & 0x7F) << shift
        shift += 7
        if data[position] < 0x80:
            start = position + 1
            return data[start:] if start + size == len(data) else None
    return None
