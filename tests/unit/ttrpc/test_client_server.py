"""Client and server over real Unix sockets: calls, errors, time-outs, close rules."""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Call, Client, Code, ConnectionClosed, RpcError, Server
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire.error import ProtocolError

MESSAGE_MAX = 4 << 20


class Service:
    """The handlers of these tests; calls to Wait block until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.calls: list[Call] = []

    def handlers(self) -> dict[tuple[str, str], Callable[[Call], bytes]]:
        return {
            ("test.Echo", "Echo"): lambda call: call.payload,
            ("test.Echo", "Big"): lambda call: bytes(int(call.payload)),
            ("test.Echo", "Record"): self.record,
            ("test.Echo", "Wait"): self.wait,
            ("test.Echo", "Refuse"): self.refuse,
            ("test.Echo", "Crash"): self.crash,
            ("test.Echo", "Nothing"): lambda call: None,  # handlers' bugs
            ("test.Echo", "Text"): lambda call: "text",
        }

    def record(self, call: Call) -> bytes:
        self.calls.append(call)
        return b""

    def wait(self, call: Call) -> bytes:
        self.waiting.release()
        self.gate.wait(5)
        return call.payload

    def refuse(self, call: Call) -> bytes:
        raise RpcError(Code.FAILED_PRECONDITION, f"not {call.payload.decode()}")

    def crash(self, call: Call) -> bytes:
        raise KeyError("boom")


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.gate.set()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


@pytest.fixture
def server(service: Service, path: Path) -> Iterator[Server]:
    with Server(service.handlers(), max_connections=4) as server:
        server.serve_unix(path)
        yield server
        service.gate.set()


@pytest.fixture
def client(server: Server, path: Path) -> Iterator[Client]:
    with Client(path) as client:
        yield client


def echo(client: Client, payload: bytes, timeout_s: float | None = 5) -> bytes:
    return client.call("test.Echo", "Echo", payload, timeout_s=timeout_s)


def is_idle(client: Client) -> bool:
    """No trace is left of any call."""
    return not client._channel._pending and not client._channel._connection.open_streams


def ttrpc_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ttrpc-")]


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def read_frame(connection: socket.socket) -> tuple[int, int, bytes]:
    with connection.makefile("rb", buffering=0) as stream:

        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                data += (piece := stream.read(size - len(data)) or b"")
                assert piece, "closed"
            return data

        length, stream_id, kind, _flags = struct.unpack(">IIBB", exactly(10))
        return stream_id, kind, exactly(length)


@pytest.fixture
def raw_peer() -> Iterator[tuple[Client, socket.socket]]:
    """A client, and the bare other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with Client(ours) as client, theirs:
        yield client, theirs


class TestCalls:
    @pytest.mark.parametrize("size", [0, 1, 4086, 65536, 1_000_000, MESSAGE_MAX - 100])
    def test_a_payload_comes_back(self, client: Client, size: int) -> None:
        payload = os.urandom(size)
        assert echo(client, payload) == payload

    def test_several_calls_on_one_connection(self, client: Client) -> None:
        assert [echo(client, b"%d" % n, None) for n in range(50)] == [b"%d" % n for n in range(50)]

    def test_the_handler_sees_what_was_called(self, client: Client, service: Service) -> None:
        before = time.monotonic()
        client.call("test.Echo", "Record", b"p", timeout_s=3, metadata=[("TraceParent", "x"), ("a", "1"), ("a", "2")])
        client.call("test.Echo", "Record", b"", timeout_s=None)
        first, second = service.calls
        assert (first.service, first.method, first.payload) == ("test.Echo", "Record", b"p")
        assert first.metadata == (("traceparent", "x"), ("a", "1"), ("a", "2"))
        assert first.deadline is not None and before + 2.5 < first.deadline < time.monotonic() + 3
        assert second.deadline is None

    def test_concurrent_calls_of_one_client(self, client: Client) -> None:
        payloads = [b"%d" % n * 3000 for n in range(200)]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(lambda payload: echo(client, payload), payloads)) == payloads

    def test_answers_out_of_order_find_their_callers(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(3) as pool:
            futures = {}
            for name in (b"a", b"b", b"c"):
                future = pool.submit(echo, client, name)
                stream_id, _kind, _data = read_frame(peer)
                futures[stream_id] = (future, name)
            assert list(futures) == [1, 3, 5]
            for stream_id in (5, 1, 3):
                future, name = futures[stream_id]
                data = pb.Response(payload=name).SerializeToString()
                peer.sendall(struct.pack(">IIBB", len(data), stream_id, 2, 0) + data)
                assert future.result(5) == name

    def test_clients_do_not_wait_for_each_other(self, server: Server, path: Path, service: Service) -> None:
        with Client(path) as slow, Client(path) as quick, ThreadPoolExecutor(1) as pool:
            future = pool.submit(slow.call, "test.Echo", "Wait", b"s", timeout_s=5)
            assert service.waiting.acquire(timeout=5)
            assert echo(quick, b"q") == b"q"
            service.gate.set()
            assert future.result(5) == b"s"


class TestErrors:
    @pytest.mark.parametrize(
        ("service_name", "method", "code", "text"),
        [
            ("test.Nobody", "Echo", Code.UNIMPLEMENTED, "service test.Nobody"),
            ("test.Echo", "Nope", Code.UNIMPLEMENTED, "method Nope"),
            ("test.Echo", "Refuse", Code.FAILED_PRECONDITION, "not p"),
            ("test.Echo", "Crash", Code.UNKNOWN, "'boom'"),
            ("test.Echo", "Nothing", Code.UNKNOWN, "ttrpc: marshal called with nil"),
            ("test.Echo", "Text", Code.UNKNOWN, "handler of test.Echo/Text returned str, not bytes"),
        ],
    )
    def test_statuses(self, client: Client, service_name: str, method: str, code: Code, text: str) -> None:
        with pytest.raises(RpcError) as caught:
            client.call(service_name, method, b"p", timeout_s=5)
        assert (caught.value.code, caught.value.message) == (code, text)
        assert str(caught.value) == f"{code.name}: {text}"
        assert echo(client, b"still here") == b"still here"

    def test_a_request_that_is_too_long_fails_here(self, client: Client) -> None:
        with pytest.raises(RpcError, match="exceed maximum message size of 4194304") as caught:
            echo(client, bytes(MESSAGE_MAX))
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert echo(client, b"x") == b"x"

    def test_an_answer_that_is_too_long_fails_its_call(self, client: Client) -> None:
        with pytest.raises(RpcError) as caught:
            client.call("test.Echo", "Big", b"%d" % (MESSAGE_MAX + 1), timeout_s=5)
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert echo(client, b"x") == b"x"

    def test_a_request_that_is_too_long_on_the_wire_fails_its_stream(self, server: Server, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(5)
            peer.connect(str(path))
            peer.sendall(struct.pack(">IIBB", MESSAGE_MAX + 1, 1, 1, 0) + bytes(MESSAGE_MAX + 1))
            stream_id, kind, data = read_frame(peer)
            assert (stream_id, kind, pb.Response.FromString(data).status.code) == (1, 2, 8)
            request = pb.Request(service="test.Echo", method="Echo", payload=b"x").SerializeToString()
            peer.sendall(struct.pack(">IIBB", len(request), 3, 1, 0) + request)
            assert read_frame(peer) == (3, 2, pb.Response(payload=b"x").SerializeToString())

    def test_text_that_is_not_unicode_leaves_the_client_usable(self, client: Client) -> None:
        with pytest.raises(ProtocolError):
            client.call("\udcff", "m", b"", timeout_s=1)
        assert echo(client, b"x") == b"x"

    def test_numbers_that_are_no_code_stay_numbers(self) -> None:
        assert RpcError(99, "x").code == 99
        assert str(RpcError(99, "x")) == "code 99: x"
        assert isinstance(RpcError(5, "x").code, Code)


class TestTimeouts:
    def test_a_caller_stops_waiting(self, client: Client, service: Service) -> None:
        before = time.monotonic()
        with pytest.raises(RpcError) as caught:
            client.call("test.Echo", "Wait", b"", timeout_s=0.05)
        assert caught.value.code == Code.DEADLINE_EXCEEDED
        assert 0.05 <= time.monotonic() - before < 2
        assert is_idle(client)

    def test_the_late_answer_is_dropped_and_the_next_call_works(self, client: Client, service: Service) -> None:
        with pytest.raises(RpcError):
            client.call("test.Echo", "Wait", b"late", timeout_s=0.02)
        service.gate.set()
        assert echo(client, b"next") == b"next"
        assert is_idle(client)

    def test_a_deadline_that_is_over_still_says_so_to_the_server(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            echo(client, b"", -1)
        assert pb.Request.FromString(read_frame(peer)[2]).timeout_nano == 1

    def test_another_caller_takes_over_the_reading(self, client: Client, service: Service) -> None:
        with ThreadPoolExecutor(2) as pool:
            short = pool.submit(client.call, "test.Echo", "Wait", b"short", timeout_s=0.05)
            assert service.waiting.acquire(timeout=5)  # it has sent, so it reads
            long = pool.submit(client.call, "test.Echo", "Echo", b"long", timeout_s=5)
            assert isinstance(short.exception(5), RpcError)
            service.gate.set()
            assert long.result(5) == b"long"

    def test_a_peer_that_does_not_read_costs_the_connection(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, _peer = raw_peer
        with pytest.raises(RpcError, match="the server does not read") as caught:
            echo(client, bytes(MESSAGE_MAX - 100), 0.05)
        assert caught.value.code == Code.DEADLINE_EXCEEDED
        with pytest.raises(ConnectionClosed, match="sent in part"):
            echo(client, b"")


class TestClose:
    def test_the_end_of_the_peer_fails_waiting_and_next_calls(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(echo, client, b"x", 5) for _ in range(3)]
            for _ in futures:
                read_frame(peer)
            peer.close()
            for future in futures:
                assert isinstance(future.exception(5), ConnectionClosed)
        with pytest.raises(ConnectionClosed):
            echo(client, b"x")

    def test_answers_before_the_end_count(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        data = pb.Response(payload=b"last").SerializeToString()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(echo, client, b"x", 5)
            read_frame(peer)
            peer.sendall(struct.pack(">IIBB", len(data), 1, 2, 0) + data)
            peer.close()
            assert future.result(5) == b"last"

    def test_closing_the_client_wakes_its_callers(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(echo, client, b"x", None)
            read_frame(peer)
            client.close()
            assert isinstance(future.exception(5), ConnectionClosed)
        client.close()
        with pytest.raises(ConnectionClosed, match="closed by this client"):
            echo(client, b"x")

    def test_closing_the_client_wakes_a_writer(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(echo, client, bytes(MESSAGE_MAX - 100), None)
            peer.recv(1)
            client.close()
            assert isinstance(future.exception(5), ConnectionClosed)

    def test_a_client_that_leaves_is_forgotten(self, server: Server, path: Path) -> None:
        for _ in range(20):  # five times as many as may be open at once
            with Client(path) as client:
                echo(client, b"x")
            assert soon(lambda: not server._connections)

    def test_half_a_frame_and_the_end_is_just_the_end(self, server: Server, path: Path, client: Client) -> None:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(path))
            peer.sendall(b"\0\0\0\5\0\0")
        assert echo(client, b"x") == b"x"

    def test_a_client_that_leaves_during_its_call_hurts_nobody(
        self, server: Server, path: Path, service: Service, client: Client
    ) -> None:
        with Client(path) as leaver, pytest.raises(RpcError):
            leaver.call("test.Echo", "Wait", b"", timeout_s=0.02)
        service.gate.set()
        assert echo(client, b"x") == b"x"
        assert soon(lambda: len(server._connections) == 1)

    def test_handlers_that_run_finish_when_the_server_closes(self, path: Path, service: Service) -> None:
        server = Server(service.handlers())
        server.serve_unix(path)
        with Client(path) as one, Client(path) as two, ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(one.call, "test.Echo", "Wait", b"1", timeout_s=5)]
            futures += [pool.submit(two.call, "test.Echo", "Wait", b"2", timeout_s=5)]
            for _ in futures:
                assert service.waiting.acquire(timeout=5)
            closing = pool.submit(server.close)
            assert soon(lambda: not path.exists())
            with pytest.raises(OSError):
                Client(path)
            service.gate.set()
            assert [future.result(5) for future in futures] == [b"1", b"2"]
            closing.result(5)
        assert ttrpc_threads() == []

    def test_a_handler_that_does_not_end_does_not_hold_close(
        self, path: Path, service: Service, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server(service.handlers())
        server.serve_unix(path)
        with Client(path) as client, ThreadPoolExecutor(1) as pool:
            future = pool.submit(client.call, "test.Echo", "Wait", b"", timeout_s=5)
            assert service.waiting.acquire(timeout=5)
            server.close(grace_s=0.02)
            assert isinstance(future.exception(5), ConnectionClosed)
        assert "a handler does not end" in caplog.text
        service.gate.set()
        assert soon(lambda: ttrpc_threads() == [])

    def test_close_joins_idle_connections_and_may_be_repeated(self, server: Server, client: Client) -> None:
        echo(client, b"x")
        assert ttrpc_threads() == ["ttrpc-accept", "ttrpc-1.1", "ttrpc-1.2"]
        server.close()
        server.close()
        assert ttrpc_threads() == []
        with pytest.raises(ConnectionClosed):
            echo(client, b"x")

    def test_wait_ends_with_close(self, server: Server) -> None:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(server.wait)
            server.close()
            future.result(5)

    def test_a_server_that_never_served_closes(self) -> None:
        Server({}).close()

    def test_a_server_serves_once(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError):
            server.serve_unix(tmp_path / "other.sock")


class TestSocketFile:
    def test_mode_is_private_whatever_the_umask(self, server: Server, path: Path) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_mode_can_be_chosen(self, path: Path) -> None:
        with Server({}) as server:
            server.serve_unix(path, mode=0o660)
            assert stat.S_IMODE(path.stat().st_mode) == 0o660

    def test_a_stale_socket_is_replaced(self, path: Path, service: Service) -> None:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        with Server(service.handlers()) as server:
            server.serve_unix(path)
            with Client(path) as client:
                assert echo(client, b"x") == b"x"
        assert not path.exists()

    def test_a_living_server_is_not_replaced(self, server: Server, path: Path, client: Client) -> None:
        with Server({}) as second, pytest.raises(OSError) as caught:
            second.serve_unix(path)
        assert caught.value.errno == errno.EADDRINUSE
        assert echo(client, b"x") == b"x"

    def test_a_file_is_not_replaced(self, path: Path) -> None:
        path.write_text("precious")
        with Server({}) as server, pytest.raises(FileExistsError):
            server.serve_unix(path)
        assert path.read_text() == "precious"

    def test_closing_leaves_the_socket_of_a_successor(self, server: Server, path: Path) -> None:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as successor:
            successor.bind(str(path))
            server.close()
            assert path.exists()

    def test_connecting_to_nobody_says_so(self, path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            Client(path)


def test_connections_over_the_limit_are_closed(server: Server, path: Path) -> None:
    clients = [Client(path) for _ in range(4)]
    assert [echo(client, b"x") for client in clients] == [b"x"] * 4
    with Client(path) as fifth, pytest.raises(ConnectionClosed):
        echo(fifth, b"x")
    clients.pop().close()
    assert soon(lambda: len(server._connections) == 3)
    with Client(path) as again:
        assert echo(again, b"x") == b"x"
    for client in clients:
        client.close()


def test_protocol_errors_are_answered(server: Server, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(5)
        peer.connect(str(path))
        peer.sendall(struct.pack(">IIBB", 0, 2, 1, 0) + struct.pack(">IIBB", 0, 1, 3, 0))
        answers = [read_frame(peer) for _ in range(2)]
    assert [(stream_id, pb.Response.FromString(data).status.code) for stream_id, _, data in answers] == [(2, 3), (1, 3)]
