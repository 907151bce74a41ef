"""Calls over a server's connection, whether they succeed, fail or outlive it."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Client, Code, ConnectionClosed, RpcError, Server
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.echoing import MESSAGE_MAX, Service, echo, read_frame, soon, ttrpc_threads


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

    def test_clients_do_not_wait_for_each_other(self, server: Server, path: Path, service: Service) -> None:
        with Client(path) as slow, Client(path) as quick, ThreadPoolExecutor(1) as pool:
            future = pool.submit(slow.call, "test.Echo", "Wait", b"s", timeout_s=5)
            assert service.waiting.acquire(timeout=30)
            assert echo(quick, b"q") == b"q"
            service.gate.set()
            assert future.result(30) == b"s"


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


class TestClose:
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
                assert service.waiting.acquire(timeout=30)
            closing = pool.submit(server.close)
            assert soon(lambda: not path.exists())
            with pytest.raises(OSError):
                Client(path)
            service.gate.set()
            assert [future.result(30) for future in futures] == [b"1", b"2"]
            closing.result(30)
        assert soon(lambda: ttrpc_threads() == [])

    def test_a_handler_that_does_not_end_does_not_hold_close(
        self, path: Path, service: Service, caplog: pytest.LogCaptureFixture
    ) -> None:
        server = Server(service.handlers())
        server.serve_unix(path)
        with Client(path) as client, ThreadPoolExecutor(1) as pool:
            future = pool.submit(client.call, "test.Echo", "Wait", b"", timeout_s=5)
            assert service.waiting.acquire(timeout=30)
            server.close(grace_s=0.02)
            assert isinstance(future.exception(30), ConnectionClosed)
        assert "a handler does not end" in caplog.text
        service.gate.set()
        assert soon(lambda: ttrpc_threads() == [])

    def test_close_joins_idle_connections_and_may_be_repeated(self, server: Server, client: Client) -> None:
        echo(client, b"x")
        assert ttrpc_threads() == ["ttrpc-accept", "ttrpc-1.1", "ttrpc-1.2"]
        server.close()
        server.close()
        assert soon(lambda: ttrpc_threads() == [])
        with pytest.raises(ConnectionClosed):
            echo(client, b"x")

    def test_wait_ends_with_close(self, server: Server) -> None:
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(server.wait)
            server.close()
            future.result(30)

    def test_a_server_that_never_served_closes(self) -> None:
        Server({}).close()

    def test_a_server_serves_once(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(RuntimeError):
            server.serve_unix(tmp_path / "other.sock")


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
