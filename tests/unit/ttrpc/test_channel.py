"""A client's connection: answers in any order, time-outs, and its end."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Client, Code, ConnectionClosed, RpcError, Server
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.echoing import MESSAGE_MAX, Service, echo, is_idle, read_frame


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


@pytest.fixture
def raw_peer() -> Iterator[tuple[Client, socket.socket]]:
    """A client, and the bare other end of its socket."""
    ours, theirs = socket.socketpair()
    theirs.settimeout(5)
    with Client(ours) as client, theirs:
        yield client, theirs


class TestCalls:
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
                assert future.result(30) == name


class TestTimeouts:
    def test_a_caller_stops_waiting(self, client: Client, service: Service) -> None:
        before = time.monotonic()
        with pytest.raises(RpcError) as caught:
            client.call("test.Echo", "Wait", b"", timeout_s=0.05)
        assert caught.value.code == Code.DEADLINE_EXCEEDED
        assert 0.05 <= time.monotonic() - before < 10
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
            assert service.waiting.acquire(timeout=30)  # it has sent, so it reads
            long = pool.submit(client.call, "test.Echo", "Echo", b"long", timeout_s=5)
            assert isinstance(short.exception(30), RpcError)
            service.gate.set()
            assert long.result(30) == b"long"

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
                assert isinstance(future.exception(30), ConnectionClosed)
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
            assert future.result(30) == b"last"

    def test_closing_the_client_wakes_its_callers(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(echo, client, b"x", None)
            read_frame(peer)
            client.close()
            assert isinstance(future.exception(30), ConnectionClosed)
        client.close()
        with pytest.raises(ConnectionClosed, match="closed by this client"):
            echo(client, b"x")

    def test_closing_the_client_wakes_a_writer(self, raw_peer: tuple[Client, socket.socket]) -> None:
        client, peer = raw_peer
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(echo, client, bytes(MESSAGE_MAX - 100), None)
            peer.recv(1)
            client.close()
            assert isinstance(future.exception(30), ConnectionClosed)
