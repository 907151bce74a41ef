"""What the bytes of a runtime can do to a session: end it at any place, and never make it hold more than it should."""

from __future__ import annotations

import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from nri_rdma.doors.nri.messages import PLUGIN_SERVICE
from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.doors.nri.session import Session
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import Code, Request
from nri_rdma.wire import WireError
from nri_rdma.wire.mux import HOSTILE_LENGTH, PLUGIN_SERVICE_CONN, MuxDecoder

SOON_S = 30.0
KERNEL_HOLDS = 1 << 20
"""More than a socket pair's two buffers hold: about 212,992 bytes each."""


class Answering(Plugin):
    """Answers everything with a kilobyte."""

    def __init__(self) -> None:
        """Without a engine."""

    def answer(self, request: Request) -> bytes:
        return bytes(1024)


class Running:
    """A session in a thread of its own, and the runtime's end of its socket."""

    def __init__(self) -> None:
        self.ours, self.runtime = socket.socketpair()
        self.session = Session(self.ours, Answering(), name="nri-rdma", index="10")
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.session.run()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error


@pytest.fixture
def running() -> Iterator[Running]:
    made = Running()
    made.runtime.settimeout(SOON_S)
    yield made
    made.runtime.close()
    made.thread.join(SOON_S)
    assert not made.thread.is_alive()


def call(stream_id: int) -> bytes:
    data = pb.Request(service=PLUGIN_SERVICE, method="StateChange", payload=bytes(100)).SerializeToString()
    message = struct.pack(">IIBB", len(data), stream_id, 1, 0) + data
    return struct.pack(">II", 1, len(message)) + message


@pytest.mark.parametrize("cut", [0, 3, 8, 12, 18, 40])
def test_the_end_inside_a_frame_ends_the_session(running: Running, cut: int) -> None:
    """Go: an end of the trunk closes both conns, whatever they were in the middle of."""
    running.runtime.sendall(call(1)[:cut])
    running.runtime.shutdown(socket.SHUT_WR)
    running.thread.join(SOON_S)
    assert not running.thread.is_alive()
    assert running.error is None
    assert running.ours.fileno() == -1, "its socket is closed"


def test_a_call_with_a_number_that_was_used_is_refused_and_the_next_one_is_answered(running: Running) -> None:
    running.runtime.sendall(call(1) + call(1) + call(3))
    trunk, client = MuxDecoder(), b""
    codes: list[tuple[int, int]] = []
    while len(codes) < 3:
        for conn, piece in trunk.receive_data(running.runtime.recv(65536)):
            client += piece if conn == PLUGIN_SERVICE_CONN else b""
        while len(client) >= 10 + (length := int.from_bytes(client[:4], "big")) and client:
            answer = pb.Response.FromString(client[10 : 10 + length])
            codes.append((int.from_bytes(client[4:8], "big"), answer.status.code))
            client = client[10 + length :]
    assert codes == [(1, Code.OK), (1, Code.INVALID_ARGUMENT), (3, Code.OK)]


def test_a_hostile_length_ends_the_session(running: Running) -> None:
    running.runtime.sendall(struct.pack(">II", 1, HOSTILE_LENGTH + 1))
    running.thread.join(SOON_S)
    assert isinstance(running.error, WireError)


def test_a_runtime_that_floods_and_does_not_read_is_not_read_either(running: Running) -> None:
    """No call is taken before the answer to the last one is written: what waits waits in the kernel."""
    running.runtime.settimeout(0.5)
    sent, stream_id = 0, 1
    with pytest.raises(TimeoutError):
        while sent < 64 << 20:
            running.runtime.sendall(call(stream_id))
            sent, stream_id = sent + len(call(1)), stream_id + 2
    assert sent < KERNEL_HOLDS
    assert len(running.session._server._buffer) < 1 << 17
    assert running.session._server.open_streams <= 1


def test_a_large_message_in_the_smallest_pieces_holds_itself_only(running: Running) -> None:
    """Four million frames of a byte would be; 64 Ki of them show it."""
    size = 64 << 10
    data = pb.Request(service=PLUGIN_SERVICE, method="StateChange", payload=bytes(size)).SerializeToString()
    message = struct.pack(">IIBB", len(data), 1, 1, 0) + data
    trunk = b"".join(struct.pack(">IIB", 1, 1, byte) for byte in message)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    running.runtime.sendall(trunk)
    header = running.runtime.recv(8, socket.MSG_WAITALL)  # RegisterPlugin
    running.runtime.recv(struct.unpack(">II", header)[1], socket.MSG_WAITALL)
    assert struct.unpack(">II", running.runtime.recv(8, socket.MSG_WAITALL))[0] == 1, "it is answered"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 << 10, "in KiB"
