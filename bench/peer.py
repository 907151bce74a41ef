"""The runtime's end of one NRI connection, in raw bytes: as little as the bench needs, and the same for every plugin.

It knows that a plugin says nothing unasked once it is registered.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from types import TracebackType
from typing import Self

from bench import messages
from bench.messages import Call

TIMEOUT_S = 20.0
_MUX_HEADER, _TTRPC_HEADER = 8, 10
_LENGTH_END = _MUX_HEADER + 4
HEADERS = _MUX_HEADER + _TTRPC_HEADER
"""Bytes of a mux and a ttrpc header."""

_FRAME = struct.Struct(">IIBB")
_RUNTIME_SERVICE_CONN, _RESPONSE = 2, 2


class Listener:
    """A runtime's socket, for plugins to connect to."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(os.fspath(path))
        self._socket.listen()
        self._socket.settimeout(TIMEOUT_S)

    def accept(self) -> Peer:
        """The next plugin. Raises TimeoutError."""
        return Peer(self._socket.accept()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._socket.close()


class Peer:
    """One connected plugin."""

    def __init__(self, connection: socket.socket) -> None:
        # Not settimeout: that polls before each call, and its cost would be in every figure.
        connection.setblocking(True)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(TIMEOUT_S), 0))
        self._socket = connection
        self._stream_id = -1
        pid, _uid, _gid = struct.unpack(
            "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        self.pid = int(pid)

    def wait_for_registration(self) -> None:
        """Until RegisterPlugin is here."""
        data = self._receive()
        if int.from_bytes(data[:4], "big") != _RUNTIME_SERVICE_CONN or b"RegisterPlugin" not in data:
            raise ValueError("the plugin's first message is not RegisterPlugin")

    def activate(self, timeout_s: float = messages.TIMEOUT_S) -> None:
        """The rest of the handshake: the answer, Configure with this time for each request, Synchronize."""
        frame = _FRAME.pack(0, 1, _RESPONSE, 0)
        self._socket.sendall(struct.pack(">II", _RUNTIME_SERVICE_CONN, len(frame)) + frame)
        self.call(messages.configure(timeout_s))
        self.call(messages.synchronize())

    def call(self, call: Call) -> bytes:
        """Write a call and read its answer: one frame with its headers, which are the first `HEADERS` bytes."""
        self._stream_id += 2
        self._socket.sendall(call.on(self._stream_id))
        return self._receive()

    def close(self) -> None:
        """Leave the plugin alone."""
        self._socket.close()

    def _receive(self) -> bytes:
        data = self._socket.recv(1 << 16)
        while data and (len(data) < HEADERS or len(data) < 8 + int.from_bytes(data[4:8], "big")):
            data += self._socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the plugin closed the connection")
        if len(data) != HEADERS + int.from_bytes(data[_MUX_HEADER:_LENGTH_END], "big"):
            return self._receive_rest(data)
        return data

    def _receive_rest(self, data: bytes) -> bytes:
        """The answer has several mux frames: as if it had one."""
        message, at = b"", 0
        while len(message) < 4 or len(message) < _TTRPC_HEADER + int.from_bytes(message[:4], "big"):
            while len(data) < at + _MUX_HEADER or len(data) < at + _MUX_HEADER + _length(data, at):
                more = self._socket.recv(1 << 16)
                if not more:
                    raise ConnectionError("the plugin closed the connection")
                data += more
            end = at + _MUX_HEADER + _length(data, at)
            message += data[at + _MUX_HEADER : end]
            at = end
        return data[:4] + len(message).to_bytes(4, "big") + message


def _length(data: bytes, at: int) -> int:
    """What the mux header there says."""
    return int.from_bytes(data[at + 4 : at + _MUX_HEADER], "big")
