"""The messages of a call, as its handler sees them: over real sockets, and against the bare bytes of a client."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Call, Client, Code, RpcError, Server, Stream, Streaming
from nri_rdma.ttrpc.inbox import FULL, OVERHEAD, PATIENCE_S
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.peers import (
    CLOSED,
    DATA,
    NO_DATA,
    OPEN,
    REQUEST,
    RESPONSE,
    SOON_S,
    Frame,
    Peer,
    soon,
    ttrpc_threads,
)
from tests.unit.ttrpc.streaming import SERVICE, Service, bidi, send_all


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
    with Server(service.handlers(), max_streams=8) as server:  # type: ignore[arg-type] # some are wrong on purpose
        server.serve_unix(path)
        yield server
        service.gate.set()
    soon(lambda: ttrpc_threads() == [], "all threads to end")


@pytest.fixture
def client(server: Server, path: Path) -> Iterator[Client]:
    with Client(path) as client:
        yield client
        assert not client._channel._pending and not client._channel._connection.open_streams


@pytest.fixture
def caller(server: Server, path: Path) -> Iterator[Peer]:
    """The bare bytes of a client."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    with Peer(connection) as peer:
        yield peer


class TestErrors:
    def test_a_handler_of_one_answer_sends_no_messages(self, path: Path) -> None:
        def chatty(call: Call, stream: Stream) -> bytes:
            stream.send(b"x")
            return b""

        with Server({("s", "m"): Streaming(handler=chatty, client_streams=True, server_streams=False)}) as server:
            server.serve_unix(path)
            with Client(path) as client, pytest.raises(RpcError, match="has one answer: the handler returns it"):
                client.stream("s", "m", client_streams=True, server_streams=False, timeout_s=SOON_S).result()


class TestTime:
    def test_the_handler_s_own_deadline_ends_its_waiting(self, caller: Peer, service: Service) -> None:
        service.gate.set()
        message = pb.Request(service=SERVICE, method="Hold", timeout_nano=50_000_000).SerializeToString()
        caller.send(1, REQUEST, message, OPEN)
        assert caller.frame().status == (1, Code.DEADLINE_EXCEEDED, "no message before the call's deadline")

    def test_a_handler_may_wait_for_less(self, path: Path) -> None:
        def impatient(call: Call, stream: Stream) -> bytes:
            with pytest.raises(TimeoutError):
                stream.receive(0.01)
            return stream.receive(SOON_S) or b""

        with Server({("s", "m"): Streaming(handler=impatient, client_streams=True, server_streams=False)}) as server:
            server.serve_unix(path)
            with Client(path) as client:
                stream = client.stream("s", "m", client_streams=True, server_streams=False, timeout_s=SOON_S)
                assert stream.receive is not None
                threading.Timer(0.1, stream.send, [b"late"]).start()
                assert stream.receive(SOON_S) is None, "it is answered, which is no message"
                assert stream.result() == b"late"


class TestBackPressure:
    def test_a_stream_that_nobody_takes_does_not_block_the_connection(self, caller: Peer, service: Service) -> None:
        """Go: TestStreamNotConsumedDoesNotBlockConnection and TestStreamFullOnServer."""
        caller.request(1, SERVICE, "Hold", flags=OPEN)
        assert service.entered.acquire(timeout=SOON_S)
        size = 64 << 10
        before = time.monotonic()
        for _ in range(FULL // (size + OVERHEAD) + 2):  # one that makes it full, and one more
            caller.send(1, DATA, bytes(size))
        caller.request(3, SERVICE, "Unary", b"x")
        assert caller.frame().status == (1, Code.RESOURCE_EXHAUSTED, "the handler does not take the stream's messages")
        assert time.monotonic() - before >= PATIENCE_S
        assert caller.frame() == Frame(3, RESPONSE, 0, pb.Response(payload=b"x").SerializeToString())
        caller.send(1, DATA, b"x")
        assert caller.frame().status == (1, Code.INVALID_ARGUMENT, "StreamID is no longer active")
        service.gate.set()
        soon(lambda: service.ended != [], "the handler to end")
        taken, _, error = service.ended[0].partition(" then ")
        assert size * int(taken) <= FULL + size
        assert error.startswith("RpcError RESOURCE_EXHAUSTED") and error.endswith("cancelled True")

    def test_a_handler_that_is_only_slow_gets_everything(
        self, client: Client, server: Server, service: Service
    ) -> None:
        with bidi(client, "Hold") as stream:
            assert service.entered.acquire(timeout=SOON_S)
            size, count = 64 << 10, 3 * FULL // (64 << 10)
            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(send_all, stream, [bytes(size)] * count)
                (connection,) = server._connections
                (held,) = connection._streams.values()
                soon(lambda: held._inbox.is_full, "the stream to be full")
                soon(lambda: bool(held._changed._waiters), "the reader to wait for it")  # type: ignore[attr-defined]
                service.gate.set()
                sending.result(SOON_S)
            stream.close_send()
            assert stream.receive() == b"%d" % count


class TestTheEndOfAPeer:
    def test_a_client_that_leaves_cancels_its_streams(self, server: Server, path: Path, service: Service) -> None:
        service.gate.set()
        with Client(path) as client:
            bidi(client, "Hold").send(b"x")
            assert service.entered.acquire(timeout=SOON_S)
        soon(lambda: service.ended != [], "the handler to end")
        assert service.ended == ["1 then ConnectionClosed the caller has gone, cancelled True"]
        soon(lambda: not server._connections, "the connection to be forgotten")

    def test_a_stream_is_cancelled_for_whoever_still_uses_it_when_its_handler_returns(self, path: Path) -> None:
        """Go: TestStreamHandlerContextCancelOnReturn."""
        kept: list[tuple[Call, Stream]] = []

        def careless(call: Call, stream: Stream) -> None:
            kept.append((call, stream))
            assert not call.cancelled.is_set()

        with Server({("s", "m"): Streaming(handler=careless, client_streams=True, server_streams=True)}) as server:
            server.serve_unix(path)
            with Client(path) as client:
                stream = client.stream("s", "m", client_streams=True, server_streams=True, timeout_s=SOON_S)
                assert stream.receive() is None
                ((call, left),) = kept
                assert call.cancelled.is_set()
                for use in (left.receive, partial(left.send, b"x")):
                    with pytest.raises(RpcError, match="CANCELED: the call is over"):
                        use()

    def test_a_stream_broken_by_its_caller_is_over_for_the_handler(self, caller: Peer, service: Service) -> None:
        service.gate.set()
        caller.request(1, SERVICE, "Hold", flags=OPEN)
        caller.send(1, DATA, b"x", CLOSED)
        assert caller.frame().status == (1, 3, "data close message cannot include data")
        soon(lambda: service.ended != [], "the handler to end")
        assert service.ended == ["1 then RpcError INVALID_ARGUMENT: the caller broke the protocol, cancelled True"]
        caller.request(3, SERVICE, "Unary", b"x")
        assert caller.frame().stream_id == 3, "and its answer went nowhere"


class TestBytesOnTheWire:
    def test_of_a_sum(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "Sum", flags=OPEN)
        caller.send(1, DATA, b"1")
        caller.send(1, DATA, b"", NO_DATA)
        caller.send(1, DATA, b"", CLOSED)  # an empty message, and the end
        assert caller.frame() == Frame(1, RESPONSE, 0, pb.Response(payload=b"1").SerializeToString())

    def test_a_unary_request_to_a_method_that_streams_is_refused(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "Divide", b"2")
        assert caller.frame().status == (1, 3, "method Divide streams, and the request is a unary one")

    def test_a_unary_request_to_a_method_that_takes_messages_is_one_message(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "Sum", b"7")
        assert caller.frame() == Frame(1, RESPONSE, 0, pb.Response(payload=b"7").SerializeToString())

    def test_messages_to_a_unary_method_are_no_concern_of_its(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "Unary", b"x", flags=OPEN)
        assert caller.frame() == Frame(1, RESPONSE, 0, pb.Response(payload=b"x").SerializeToString())
