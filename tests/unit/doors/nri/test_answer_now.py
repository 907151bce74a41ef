"""A call is answered once: by its handler, or before that by whoever has done all that the answer needs."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest

from nri_rdma.doors.nri.messages import PLUGIN_SERVICE
from nri_rdma.doors.nri.plugin import AnswerNow, leave_to_handler
from nri_rdma.doors.nri.session import Session
from nri_rdma.ttrpc import Code
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import Request
from nri_rdma.wire.mux import PLUGIN_SERVICE_CONN, MuxDecoder

SOON_S = 10.0


class Handler:
    """Holds its first call until the test lets it go on; answers with the number of the stream."""

    def __init__(self) -> None:
        self.entered, self.may_return = threading.Event(), threading.Event()
        self.answer_first: Callable[[], None] = lambda: None
        self.error: Exception | None = None

    def answer(self, request: Request, answer_now: AnswerNow = leave_to_handler) -> bytes:
        if request.stream_id == 1:
            self.answer_first = lambda: answer_now(request)
            self.entered.set()
            assert self.may_return.wait(SOON_S)
            if self.error is not None:
                raise self.error
        return f"stream {request.stream_id}".encode()


class Runtime:
    """A session in a thread of its own, and the runtime's end of its socket."""

    def __init__(self) -> None:
        self.handler = Handler()
        ours, self.socket = socket.socketpair()
        self.socket.settimeout(SOON_S)
        self._session = Session(ours, self.handler, name="nri-rdma", index="10")
        self.error: OSError | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        self._trunk, self._pieces = MuxDecoder(), b""

    def _run(self) -> None:
        try:
            self._session.run()
        except OSError as error:
            self.error = error

    def call(self, stream_id: int) -> None:
        data = pb.Request(service=PLUGIN_SERVICE, method="RunPodSandbox").SerializeToString()
        message = struct.pack(">IIBB", len(data), stream_id, 1, 0) + data
        self.socket.sendall(struct.pack(">II", 1, len(message)) + message)

    def answer(self) -> tuple[int, int, bytes]:
        """The next answer: stream, code, payload."""
        while len(self._pieces) < 10 or len(self._pieces) < 10 + int.from_bytes(self._pieces[:4], "big"):
            received = self.socket.recv(65536)
            assert received, "the session has ended"
            self._pieces += b"".join(
                piece for conn, piece in self._trunk.receive_data(received) if conn == PLUGIN_SERVICE_CONN
            )
        end = 10 + int.from_bytes(self._pieces[:4], "big")
        answer, stream = pb.Response.FromString(self._pieces[10:end]), int.from_bytes(self._pieces[4:8], "big")
        self._pieces = self._pieces[end:]
        return stream, answer.status.code, answer.payload

    def held(self) -> None:
        """Make a call, whose handler is running now."""
        self.call(1)
        assert self.handler.entered.wait(SOON_S)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime()
    yield made
    made.handler.may_return.set()
    made.socket.close()
    made.thread.join(SOON_S)
    assert not made.thread.is_alive()


def test_the_runtime_has_its_answer_while_the_handler_is_busy(runtime: Runtime) -> None:
    runtime.held()
    runtime.handler.answer_first()
    assert runtime.answer() == (1, Code.OK, b"")
    assert not runtime.handler.may_return.is_set()


@pytest.mark.parametrize("error", [None, ValueError("a bug")], ids=["returns", "raises"])
def test_what_the_handler_says_afterwards_is_not_sent(runtime: Runtime, error: Exception | None) -> None:
    runtime.held()
    runtime.handler.answer_first()
    runtime.handler.answer_first()
    runtime.handler.error = error
    runtime.handler.may_return.set()
    runtime.call(3)
    assert [runtime.answer(), runtime.answer()] == [(1, Code.OK, b""), (3, Code.OK, b"stream 3")]


def test_a_handler_that_has_answered_is_not_answered_for(runtime: Runtime) -> None:
    runtime.held()
    runtime.handler.may_return.set()
    assert runtime.answer() == (1, Code.OK, b"stream 1")
    runtime.handler.answer_first()
    runtime.call(3)
    assert runtime.answer() == (3, Code.OK, b"stream 3")


def test_an_answer_that_cannot_be_sent_ends_the_session_and_not_who_gave_it(runtime: Runtime) -> None:
    runtime.held()
    runtime.socket.close()
    runtime.handler.answer_first()
    assert runtime.thread.is_alive()
    runtime.handler.may_return.set()
    runtime.thread.join(SOON_S)
    assert isinstance(runtime.error, BrokenPipeError)
