"""The daemon's control socket, asked without the product's code: one ttrpc call, its answer a JSON document.

The frame and the messages are written and read by hand, as api/control.proto and ttrpc's own definition have them: a
length, a stream, a type and flags; then protobuf fields.
"""

import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER = struct.Struct(">IIBB")
_REQUEST, _STREAM, _SECONDS = 1, 1, 10.0
_SERVICE = b"nri_rdma.control.v1.Control"


def ask_status(path: Path) -> dict[str, Any]:
    """The status document. Raises OSError when nobody serves the socket, AssertionError for another answer."""
    with socket.socket(socket.AF_UNIX) as to_daemon:
        to_daemon.settimeout(_SECONDS)
        to_daemon.connect(str(path))
        request = _field(1, _SERVICE) + _field(2, b"Status")
        to_daemon.sendall(_HEADER.pack(len(request), _STREAM, _REQUEST, 0) + request)
        length, *_ = _HEADER.unpack(_read(to_daemon, _HEADER.size))
        response = dict(_fields(_read(to_daemon, length)))
    assert 1 not in response, f"the daemon refused: {response[1]!r}"
    document: dict[str, Any] = json.loads(dict(_fields(response[2]))[1])
    return document


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionResetError("the daemon closed the connection")
        data += more
    return data


def _field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, "a length of one byte"
    return bytes([number << 3 | 2, len(value)]) + value


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that has only those with a length."""
    at = 0
    while at < len(data):
        assert data[at] & 7 == 2, "a field with a length"
        number, (length, at) = data[at] >> 3, _varint(data, at + 1)
        yield number, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
