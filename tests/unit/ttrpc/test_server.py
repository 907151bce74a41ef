"""What a server owes to its peers whatever they do, in raw bytes where they matter."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Call, Client, Code, ConnectionClosed, RpcError, Server, Stream, Streaming
from nri_rdma.ttrpc.connection import Connection
from nri_rdma.ttrpc.inbox import FULL, OVERHEAD
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.rig.descriptors import open_descriptors
from tests.unit.ttrpc.peers import (
    DATA,
    MESSAGE_MAX,
    OPEN,
    REQUEST,
    RESPONSE,
    SOON_S,
    Frame,
    Peer,
    soon,
    ttrpc_threads,
)

ECHO = ("test.Rules", "Echo")


class Service:
    """Echo answers, Wait when its own gate (named by the payload) or all of them open, Fail raises what it is given."""

    def __init__(self) -> None:
        self.gates: dict[bytes, threading.Event] = {}
        self.entered = threading.Semaphore(0)
        self.calls: list[Call] = []
        self.error: BaseException = RuntimeError("none set")

    def handlers(self) -> dict[tuple[str, str], Callable[[Call], bytes] | Streaming]:
        return {
            ECHO: lambda call: call.payload,
            ("test.Rules", "Wait"): self.wait,
            ("test.Rules", "Fail"): self.fail,
            ("test.Rules", "Big"): lambda call: bytes(int(call.payload)),
            ("test.Rules", "Talk"): Streaming(handler=self.talk, client_streams=True, server_streams=True),
        }

    def wait(self, call: Call) -> bytes:
        self.calls.append(call)
        gate = self.gates.setdefault(call.payload, threading.Event())
        self.entered.release()
        assert gate.wait(SOON_S)
        return call.payload

    def fail(self, call: Call) -> bytes:
        raise self.error

    def talk(self, call: Call, stream: Stream) -> None:
        self.entered.release()
        for payload in stream:
            stream.send(payload)

    def let_go(self) -> None:
        for gate in self.gates.values():
            gate.set()


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.let_go()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


@pytest.fixture
def server(service: Service, path: Path) -> Iterator[Server]:
    with Server(service.handlers(), max_calls=5) as server:
        server.serve_unix(path)
        yield server
        service.let_go()
    soon(lambda: ttrpc_threads() == [], "all threads to end")


def connected(path: Path) -> Peer:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return Peer(connection)


@pytest.fixture
def caller(server: Server, path: Path) -> Iterator[Peer]:
    with connected(path) as peer:
        yield peer


def answer(stream_id: int, payload: bytes) -> Frame:
    return Frame(stream_id, RESPONSE, 0, pb.Response(payload=payload).SerializeToString())


def wait_calls(caller: Peer, service: Service, names: list[bytes], first_id: int = 1) -> None:
    """Have the calls sent and running."""
    for number, name in enumerate(names):
        caller.request(first_id + 2 * number, "test.Rules", "Wait", name)
        assert service.entered.acquire(timeout=SOON_S)


class TestSideBySide:
    def test_calls_over_the_limit_wait_for_those_before_them(self, caller: Peer, service: Service) -> None:
        wait_calls(caller, service, [b"%d" % n for n in range(5)])
        for n in range(40):  # as many as the socket holds while nobody reads
            caller.request(11 + 2 * n, *ECHO, b"%d" % n)
        assert not service.entered.acquire(timeout=0.05)
        assert len([name for name in ttrpc_threads() if name != "ttrpc-accept"]) == 6
        service.gates[b"2"].set()
        assert caller.frame() == answer(5, b"2")
        assert sorted(caller.frame() for _ in range(40)) == [answer(11 + 2 * n, b"%d" % n) for n in range(40)]

    def test_a_stream_is_fed_while_as_many_calls_run_as_may(self, caller: Peer, service: Service) -> None:
        caller.request(1, "test.Rules", "Talk", flags=OPEN)
        assert service.entered.acquire(timeout=SOON_S)
        wait_calls(caller, service, [b"%d" % n for n in range(5)], first_id=3)
        caller.send(1, DATA, b"still")
        assert caller.frame() == Frame(1, DATA, 0, b"still")

    def test_with_one_call_at_a_time_they_are_answered_in_order_by_one_thread(
        self, path: Path, service: Service
    ) -> None:
        with Server(service.handlers(), max_calls=1) as server:
            server.serve_unix(path)
            with connected(path) as caller:
                wait_calls(caller, service, [b"first"])
                caller.request(3, *ECHO, b"second")
                service.gates[b"first"].set()
                assert [caller.frame(), caller.frame()] == [answer(1, b"first"), answer(3, b"second")]
                assert ttrpc_threads() == ["ttrpc-1.1", "ttrpc-accept"]

    def test_a_call_that_ends_its_thread_ends_its_connection_only(
        self, server: Server, path: Path, caller: Peer, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(threading, "excepthook", lambda _args: None)
        service.error = SystemExit()
        caller.request(1, "test.Rules", "Fail")
        assert caller.is_closed()
        soon(lambda: ttrpc_threads() == ["ttrpc-accept"], "its threads to end")
        with connected(path) as other:
            other.request(1, *ECHO, b"x")
            assert other.frame() == answer(1, b"x")


class TestRawFrames:
    def test_data_on_a_stream_that_was_answered(self, caller: Peer) -> None:
        caller.request(1, *ECHO, b"x")
        assert caller.frame() == answer(1, b"x")
        caller.send(1, DATA, b"x")
        assert caller.frame().status == (1, 3, "StreamID is no longer active")

    def test_data_on_a_unary_call_that_runs_ends_it_for_the_caller(self, caller: Peer, service: Service) -> None:
        """One stream has one answer: the handler's, later, goes nowhere."""
        wait_calls(caller, service, [b"a"])
        caller.send(1, DATA, b"x")
        assert caller.frame().status == (1, 3, "StreamID is no longer active")
        service.gates[b"a"].set()
        caller.request(3, *ECHO, b"x")
        assert caller.frame() == answer(3, b"x")

    @pytest.mark.parametrize("cut", [4, 10, 20])
    def test_half_a_frame_and_the_end_closes_the_connection(
        self, server: Server, path: Path, cut: int, caller: Peer
    ) -> None:
        with connected(path) as leaver:
            message = pb.Request(service=ECHO[0], method=ECHO[1], payload=b"x" * 50).SerializeToString()
            leaver.socket.sendall((struct.pack(">IIBB", len(message), 1, REQUEST, 0) + message)[:cut])
            leaver.socket.shutdown(socket.SHUT_WR)
            assert leaver.is_closed()
        caller.request(1, *ECHO, b"x")
        assert caller.frame() == answer(1, b"x")


class TestErrors:
    @pytest.mark.parametrize(
        ("error", "code", "text"),
        [
            (RpcError(Code.DATA_LOSS, "so"), Code.DATA_LOSS, "so"),
            (RpcError(0, "an OK that is raised is none"), Code.UNKNOWN, "an OK that is raised is none"),
            (KeyError("boom"), Code.UNKNOWN, "'boom'"),
            (ZeroDivisionError(), Code.UNKNOWN, "ZeroDivisionError"),
            (TimeoutError("late"), Code.DEADLINE_EXCEEDED, "late"),
            (CancelledError(), Code.CANCELED, "CancelledError"),
            (FileNotFoundError(errno.ENOENT, "No such file"), Code.NOT_FOUND, "[Errno 2] No such file"),
            (FileExistsError("there"), Code.ALREADY_EXISTS, "there"),
            (PermissionError("no"), Code.PERMISSION_DENIED, "no"),
            (BrokenPipeError("pipe"), Code.FAILED_PRECONDITION, "pipe"),
            (EOFError("end"), Code.OUT_OF_RANGE, "end"),
            (OSError(errno.EINVAL, "Invalid argument"), Code.INVALID_ARGUMENT, "[Errno 22] Invalid argument"),
            (OSError(errno.EIO, "I/O error"), Code.UNKNOWN, "[Errno 5] I/O error"),
            (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), Code.UNKNOWN, "'utf-8' codec can't decode byte 0xff"),
        ],
    )
    def test_what_a_handler_raises_has_go_s_code(
        self, caller: Peer, service: Service, error: Exception, code: Code, text: str
    ) -> None:
        service.error = error
        caller.request(1, "test.Rules", "Fail")
        found = caller.frame().status
        assert found[:2] == (1, code) and found[2].startswith(text)

    def test_an_answer_that_is_too_long_becomes_an_error(self, caller: Peer) -> None:
        caller.request(1, "test.Rules", "Big", b"%d" % (MESSAGE_MAX + 1))
        assert caller.frame().status[:2] == (1, Code.RESOURCE_EXHAUSTED)
        caller.request(3, *ECHO, b"x")
        assert caller.frame() == answer(3, b"x")


class TestInterceptors:
    def test_they_wrap_handlers_the_first_one_outermost(self, path: Path, service: Service) -> None:
        log: list[str] = []

        def named(name: str) -> Callable[[Call, Callable[[Call], bytes | None]], bytes | None]:
            def intercept(call: Call, proceed: Callable[[Call], bytes | None]) -> bytes | None:
                log.append(f"{name} {call.full_method} {call.values('Trace')}")
                answer = proceed(dataclasses.replace(call, payload=call.payload + name.encode()))
                log.append(f"{name} got {answer!r}")
                return answer

            return intercept

        with Server(service.handlers(), interceptors=[named("a"), named("b")]) as server:
            server.serve_unix(path)
            with Client(path) as client:
                metadata = [("TRACE", "1"), ("trace", "2")]
                assert client.call(*ECHO, b"p", timeout_s=SOON_S, metadata=metadata) == b"pab"
                stream = client.stream(
                    "test.Rules", "Talk", client_streams=True, server_streams=True, timeout_s=SOON_S
                )  # fmt: skip
                stream.send(b"x")
                assert stream.receive() == b"x"
                assert stream.result() == b""
        assert log == [
            "a /test.Rules/Echo ('1', '2')",
            "b /test.Rules/Echo ('1', '2')",
            "b got b'pab'",
            "a got b'pab'",
            "a /test.Rules/Talk ()",
            "b /test.Rules/Talk ()",
            "b got None",
            "a got None",
        ]

    def test_one_may_refuse_and_one_may_answer(self, path: Path, service: Service) -> None:
        def guard(call: Call, proceed: Callable[[Call], bytes | None]) -> bytes | None:
            if call.payload == b"refuse":
                raise RpcError(Code.UNAUTHENTICATED, "who are you")
            return b"from the guard" if call.payload == b"answer" else proceed(call)

        with Server(service.handlers(), interceptors=[guard]) as server:
            server.serve_unix(path)
            with Client(path) as client:
                assert client.call(*ECHO, b"x", timeout_s=SOON_S) == b"x"
                assert client.call(*ECHO, b"answer", timeout_s=SOON_S) == b"from the guard"
                with pytest.raises(RpcError, match="UNAUTHENTICATED: who are you"):
                    client.call(*ECHO, b"refuse", timeout_s=SOON_S)


class TestTheEnd:
    def test_calls_in_flight_are_answered_and_nothing_new_is_taken(self, path: Path, service: Service) -> None:
        """Go: TestServerShutdown."""
        server = Server(service.handlers())
        server.serve_unix(path)
        names = [b"%d" % n for n in range(5)]
        with connected(path) as caller, connected(path) as idle, ThreadPoolExecutor(1) as pool:
            idle.request(1, *ECHO, b"x")
            assert idle.frame() == answer(1, b"x")
            wait_calls(caller, service, names)
            closing = pool.submit(server.close, 6 * SOON_S)
            assert idle.is_closed(), "who has no call is let go at once"
            with pytest.raises(OSError):
                connected(path)
            caller.request(99, *ECHO, b"late")
            assert caller.frame().status == (99, Code.UNAVAILABLE, "the server is closing")
            assert not service.calls[0].cancelled.is_set()
            service.let_go()
            assert sorted(caller.frame() for _ in names) == [answer(1 + 2 * n, name) for n, name in enumerate(names)]
            assert caller.is_closed()
            closing.result(SOON_S)
        soon(lambda: ttrpc_threads() == [], "all threads to end")

    def test_a_stream_in_flight_goes_on_to_its_end(self, path: Path, service: Service) -> None:
        server = Server(service.handlers())
        server.serve_unix(path)
        with connected(path) as caller, ThreadPoolExecutor(1) as pool:
            caller.request(1, "test.Rules", "Talk", flags=OPEN)
            assert service.entered.acquire(timeout=SOON_S)
            closing = pool.submit(server.close, 6 * SOON_S)
            soon(lambda: not path.exists(), "the server to close")
            for n in range(3):
                caller.send(1, DATA, b"%d" % n)
                assert caller.frame() == Frame(1, DATA, 0, b"%d" % n)
            caller.send(1, DATA, b"", 5)
            assert caller.frame() == Frame(1, DATA, 5, b"")
            assert caller.is_closed()
            closing.result(SOON_S)

    def test_what_a_handler_answers_when_it_is_cancelled_is_lost(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        entered, lose = threading.Semaphore(0), Connection._lose

        def lose_and_let_others_run(connection: Connection) -> None:
            lose(connection)
            time.sleep(0.1)

        def wait(call: Call) -> bytes:
            entered.release()
            call.cancelled.wait(SOON_S)
            return b"late"

        monkeypatch.setattr(Connection, "_lose", lose_and_let_others_run)
        server = Server({("test.Rules", "Wait"): wait})
        server.serve_unix(path)
        with connected(path) as caller:
            caller.request(1, "test.Rules", "Wait")
            assert entered.acquire(timeout=SOON_S)
            server.close(0)
            assert caller.is_closed()

    def test_closing_before_and_without_serving(self, path: Path, service: Service) -> None:
        """Go: TestImmediateServerShutdown."""
        server = Server(service.handlers())
        server.close()
        with pytest.raises(RuntimeError):
            server.serve_unix(path)
        assert not path.exists()

    @pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET])
    def test_a_listening_socket_that_somebody_else_shuts_hurts_nobody(
        self, path: Path, service: Service, family: socket.AddressFamily
    ) -> None:
        """Go: TestServerListenerClosed."""
        listener = socket.socket(family)
        listener.bind(("127.0.0.1", 0) if family == socket.AF_INET else str(path))
        listener.listen()
        address = listener.getsockname()
        with Server(service.handlers()) as server:
            server.serve(listener)
            connection = socket.socket(family)
            connection.connect(address)
            with Peer(connection) as caller:
                caller.request(1, *ECHO, b"x")
                assert caller.frame() == answer(1, b"x")
                listener.shutdown(socket.SHUT_RDWR)
                if family == socket.AF_INET:  # of a Unix socket the kernel does not tell those who wait at it
                    soon(lambda: "ttrpc-accept" not in ttrpc_threads(), "the acceptor to end")
                caller.request(3, *ECHO, b"y")
                assert caller.frame() == answer(3, b"y"), "who is connected stays so"
            with socket.socket(family) as late, pytest.raises(ConnectionRefusedError):
                late.connect(address)
        soon(lambda: ttrpc_threads() == [], "all threads to end")

    def test_a_caller_that_has_gone_leaves_nothing(self, server: Server, path: Path, service: Service) -> None:
        """Go: TestServerConnectionsLeak and TestServerEOF: connections, threads, descriptors."""
        with connected(path) as first:
            first.request(1, *ECHO, b"x")
            first.frame()
        soon(lambda: not server._connections, "the first connection to be forgotten")
        before = open_descriptors()
        for n in range(50):
            with connected(path) as caller:
                caller.request(1, *ECHO, b"x")
                caller.request(3, "test.Rules", "Talk", flags=OPEN)
                if n % 2:
                    caller.frame()
        soon(lambda: not server._connections, "the connections to be forgotten")
        soon(lambda: ttrpc_threads() == ["ttrpc-accept"], "their threads to end")
        assert open_descriptors() <= before

    def test_a_caller_that_sends_no_more_still_gets_its_answers(self, caller: Peer, service: Service) -> None:
        wait_calls(caller, service, [b"a"])
        caller.socket.shutdown(socket.SHUT_WR)
        assert service.calls[0].cancelled.wait(SOON_S)
        service.let_go()
        assert caller.frame() == answer(1, b"a")
        assert caller.is_closed()


@pytest.mark.parametrize("limit", ["max_connections", "max_calls", "max_streams"])
def test_a_server_without_room_for_anything_is_refused(limit: str) -> None:
    with pytest.raises(ValueError, match="needs room"):
        Server({}, **{limit: 0})  # type: ignore[arg-type] # of three int parameters, one


class TestGivenSockets:
    def test_a_listening_one_as_a_launcher_gives_it_by_number(self, path: Path, service: Service) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        number = listener.detach()
        os.set_inheritable(number, True)
        with Server(service.handlers()) as server:
            server.serve(number)
            assert not os.get_inheritable(number)
            with Client(path) as client:
                assert client.call(*ECHO, b"x", timeout_s=SOON_S) == b"x"
            with pytest.raises(RuntimeError, match="one socket"):
                server.serve_unix(path.with_name("other"))
        assert path.exists(), "the file is the launcher's"

    def test_a_connected_pair_by_number_at_both_ends(self, service: Service) -> None:
        ours, theirs = socket.socketpair()
        server = Server(service.handlers())
        server.serve(ours.detach())
        with Client(theirs.detach()) as client, ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(server.wait)
            assert client.call(*ECHO, b"x", timeout_s=SOON_S) == b"x"
            assert not waiting.done()
            client.close()
            waiting.result(SOON_S), "nobody can call any more"
        server.close()
        soon(lambda: ttrpc_threads() == [], "all threads to end")

    def test_a_socket_that_is_not_connected_is_refused(self, service: Service) -> None:
        with Server(service.handlers()) as server, socket.socket(socket.AF_UNIX) as lonely:
            with pytest.raises(OSError) as caught:
                server.serve(lonely)
            assert caught.value.errno == errno.ENOTCONN

    def test_connections_over_the_limit_are_closed_given_or_not(self, service: Service) -> None:
        with Server(service.handlers(), max_connections=1) as server:
            pairs = [socket.socketpair() for _ in range(2)]
            for ours, _theirs in pairs:
                server.serve(ours)
            with Client(pairs[0][1]) as first, Client(pairs[1][1]) as second:
                assert first.call(*ECHO, b"x", timeout_s=SOON_S) == b"x"
                with pytest.raises(ConnectionClosed):
                    second.call(*ECHO, b"x", timeout_s=SOON_S)


class TestFloods:
    def test_a_caller_that_floods_and_does_not_read_is_not_read_either(
        self, server: Server, path: Path, caller: Peer
    ) -> None:
        """As many calls as may run hold an answer each, the rest waits in the kernel; others are served."""
        with connected(path) as flooder:
            flooder.socket.settimeout(0.5)
            sent = 0
            with pytest.raises(TimeoutError):
                for number in range(100_000):
                    flooder.request(2 * number + 1, "test.Rules", "Big", b"65536")
                    sent += 1
            assert sent < 1000
            (flooded,) = [one for one in server._connections if one._calls]
            assert flooded._calls <= 5 and flooded._protocol.open_streams <= 6
            assert len(flooded._protocol._buffer) < 1 << 17
            caller.request(1, *ECHO, b"x")
            assert caller.frame() == answer(1, b"x")

    @pytest.mark.usefixtures("impatient")
    def test_streams_hold_what_an_inbox_holds_each_and_no_more(self, path: Path, service: Service) -> None:
        """Handlers that take nothing: every stream is filled, refused, and its messages are let go with its handler."""
        held: list[Stream] = []
        gate = threading.Event()

        def hoard(call: Call, stream: Stream) -> bytes:
            held.append(stream)
            service.entered.release()
            gate.wait(SOON_S)
            return b""

        method = Streaming(handler=hoard, client_streams=True, server_streams=False)
        with Server({("s", "m"): method}, max_streams=2) as server:
            server.serve_unix(path)
            with connected(path) as caller:
                for stream_id in (1, 3):
                    caller.request(stream_id, "s", "m", flags=OPEN)
                    assert service.entered.acquire(timeout=SOON_S)
                for _ in range(FULL // 65536 + 1):
                    for stream_id in (1, 3):
                        caller.send(stream_id, DATA, bytes(65536))
                refused = {caller.frame().status[:2] for _ in range(2)}
                assert refused == {(1, Code.RESOURCE_EXHAUSTED), (3, Code.RESOURCE_EXHAUSTED)}
                sizes = [stream._inbox._size for stream in held]  # type: ignore[attr-defined] # the product's own
                assert all(size <= FULL + 65536 + OVERHEAD for size in sizes)
                gate.set()
