"""The bare ends of a ttrpc connection: frames made and read by hand, for tests of either end of the library."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.rig.deadline import wait_until

REQUEST, RESPONSE, DATA = 1, 2, 3
CLOSED, OPEN, NO_DATA = 1, 2, 4
MESSAGE_MAX = 4 << 20
SOON_S = 30.0


class Frame(NamedTuple):
    """What came, its data decoded as far as its type says."""

    stream_id: int
    kind: int
    flags: int
    data: bytes

    @property
    def status(self) -> tuple[int, int, str]:
        """Stream id, code and text of a Response."""
        assert self.kind == RESPONSE
        message = pb.Response.FromString(self.data)
        return self.stream_id, message.status.code, message.status.message


class Peer:
    """One end of a connection, without any rules."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.settimeout(SOON_S)

    def send(self, stream_id: int, kind: int, data: bytes = b"", flags: int = 0) -> None:
        self.socket.sendall(struct.pack(">IIBB", len(data), stream_id, kind, flags) + data)

    def request(self, stream_id: int, service: str, method: str, payload: bytes = b"", flags: int = 0) -> None:
        message = pb.Request(service=service, method=method, payload=payload)
        self.send(stream_id, REQUEST, message.SerializeToString(), flags)

    def respond(self, stream_id: int, payload: bytes = b"") -> None:
        self.send(stream_id, RESPONSE, pb.Response(payload=payload).SerializeToString())

    def fail(self, stream_id: int, code: int, text: str) -> None:
        self.send(stream_id, RESPONSE, pb.Response(status=pb.Status(code=code, message=text)).SerializeToString())

    def frame(self) -> Frame:
        """The next frame; raises EOFError at the end of the connection, TimeoutError when nothing comes."""
        length, stream_id, kind, flags = struct.unpack(">IIBB", self._exactly(10))
        return Frame(stream_id, kind, flags, self._exactly(length))

    def is_closed(self) -> bool:
        """Whether the other end closes without another word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.socket.close()

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


def ttrpc_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("ttrpc-"))


def soon(condition: Callable[[], bool], what: str) -> None:
    wait_until(condition, what, SOON_S)
