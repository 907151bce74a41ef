"""A call of messages, as its caller uses it: over real sockets, and against the bare bytes of a server."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Client, Code, ConnectionClosed, RpcError, Server
from nri_rdma.ttrpc.inbox import FULL, OVERHEAD
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.peers import (
    DATA,
    MESSAGE_MAX,
    OPEN,
    REQUEST,
    SOON_S,
    Peer,
    soon,
    ttrpc_threads,
)
from tests.unit.ttrpc.streaming import SERVICE, Service, bidi, replies, uploads


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
def answerer() -> Iterator[tuple[Client, Peer]]:
    """A client, and the bare bytes of its server."""
    ours, theirs = socket.socketpair()
    with Client(ours) as client, Peer(theirs) as peer:
        yield client, peer


class TestEveryKindOfMethod:
    def test_messages_both_ways_in_turn(self, client: Client) -> None:
        with bidi(client) as stream:
            for n in range(50):
                stream.send(b"%d" % n)
                assert stream.receive() == b"echo %d" % n
            stream.close_send()
            assert stream.receive() is None
            assert stream.receive() is None, "the end stays the end"

    def test_many_messages_are_summed_to_one_answer(self, client: Client) -> None:
        with uploads(client) as stream:
            for n in range(-99, 101):
                stream.send(b"%d" % n)
            assert stream.result() == b"100"

    def test_one_request_is_divided_into_many_answers(self, client: Client) -> None:
        with replies(client, "Divide", b"30") as stream:
            assert list(stream) == [b"%d" % n for n in range(30)]

    def test_an_empty_request_is_a_request(self, client: Client) -> None:
        """The case that hung Go's clients (ttrpc issue 126)."""
        with replies(client, "Divide", b"") as stream:
            assert list(stream) == [b"0", b"1"]

    def test_empty_messages_are_messages(self, client: Client) -> None:
        with uploads(client) as stream:
            for _ in range(100):
                stream.send(b"")
            assert stream.result() == b"0"
        with bidi(client) as stream:
            stream.send(b"")
            assert stream.receive() == b"echo "

    def test_messages_sent_by_many_threads_all_come_before_the_end(self, client: Client) -> None:
        with bidi(client, "Fan") as stream, ThreadPoolExecutor(1) as pool:
            received = pool.submit(list, stream)
            for _ in range(100):
                stream.send(b"x")
            stream.close_send()
            assert received.result(SOON_S) == [b""] * 1000

    def test_what_a_streaming_handler_returns_is_its_last_message(self, client: Client) -> None:
        assert list(replies(client, "Last", b"")) == [b"last"]

    def test_a_handler_of_one_answer_that_returns_none_is_a_bug_of_its_own(self, client: Client) -> None:
        with pytest.raises(RpcError, match="marshal called with nil") as caught:
            uploads(client, "Nothing").result()
        assert caught.value.code == Code.UNKNOWN

    def test_streams_and_unary_calls_share_a_connection(self, client: Client) -> None:
        with bidi(client) as one, bidi(client) as two:
            for n in range(20):
                one.send(b"1 %d" % n)
                two.send(b"2 %d" % n)
                assert client.call(SERVICE, "Unary", b"u", timeout_s=SOON_S) == b"u"
                assert (two.receive(), one.receive()) == (b"echo 2 %d" % n, b"echo 1 %d" % n)

    def test_the_first_message_may_be_in_the_request(self, client: Client) -> None:
        stream = client.stream(SERVICE, "Sum", b"40", client_streams=True, server_streams=False, timeout_s=SOON_S)
        stream.send(b"2")
        assert stream.result() == b"42"

    def test_metadata_and_deadline_reach_the_handler(self, client: Client, service: Service) -> None:
        pairs = [("Trace", "a"), ("trace", "b")]
        before = time.monotonic()
        with client.stream(
            SERVICE, "Sum", client_streams=True, server_streams=False, timeout_s=7, metadata=pairs
        ) as stream:  # fmt: skip
            stream.result()
        (call,) = service.calls
        assert call.metadata == (("trace", "a"), ("trace", "b"))
        assert call.deadline is not None and before + 6 < call.deadline <= time.monotonic() + 7
        assert (call.full_method, call.payload) == ("/test.Streams/Sum", b"")


class TestErrors:
    def test_sending_where_nothing_is_to_be_sent(self, client: Client) -> None:
        with replies(client, "Divide", b"1") as stream, pytest.raises(ProtocolError, match="takes no messages"):
            stream.send(b"x")
        with uploads(client) as stream:
            stream.close_send()
            with pytest.raises(ProtocolError, match="takes no messages"):
                stream.send(b"x")
            assert stream.result() == b"0"

    @pytest.mark.parametrize("size", [MESSAGE_MAX, MESSAGE_MAX + 1])
    def test_a_message_of_the_server_that_is_too_long_fails_its_stream(self, client: Client, size: int) -> None:
        with bidi(client, "Big") as stream:
            stream.send(b"%d" % size)
            if size == MESSAGE_MAX:
                assert len(stream.receive() or b"") == size
            else:
                with pytest.raises(RpcError, match="exceed maximum message size") as caught:
                    stream.receive()
                assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert client.call(SERVICE, "Unary", b"x", timeout_s=SOON_S) == b"x"


class TestTime:
    def test_a_receive_that_is_not_answered_in_time_leaves_the_stream_alone(self, client: Client) -> None:
        with bidi(client) as stream:
            before = time.monotonic()
            with pytest.raises(TimeoutError):
                stream.receive(0.05)
            assert 0.05 <= time.monotonic() - before < SOON_S / 2
            stream.send(b"x")
            assert stream.receive() == b"echo x"


class TestBackPressure:
    @pytest.mark.usefixtures("impatient")
    def test_a_client_s_stream_that_nobody_takes_fails_and_calls_go_on(self, client: Client, service: Service) -> None:
        stream = replies(client, "Flood", b"%d" % (FULL // 100))
        assert service.entered.acquire(timeout=SOON_S)
        before = time.monotonic()
        while "the stream is not given up":
            assert client.call(SERVICE, "Unary", b"x", timeout_s=SOON_S) == b"x"
            if stream._pending.outcome is not None:
                break
        assert time.monotonic() - before < SOON_S / 2
        taken = 0
        with pytest.raises(RpcError, match="nobody takes the stream's messages") as caught:
            while stream.receive() is not None:
                taken += 1
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert 0 < taken * (100 + OVERHEAD) <= FULL + 1000

    @pytest.mark.usefixtures("impatient")
    def test_one_thread_that_only_sends_is_not_stuck_for_ever(self, client: Client) -> None:
        """Both ends' buffers fill when nobody takes the echoes: an error, not a deadlock."""
        with pytest.raises(RpcError) as caught, bidi(client, timeout_s=60) as stream:
            while True:
                stream.send(bytes(100_000))
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        assert client.call(SERVICE, "Unary", b"x", timeout_s=SOON_S) == b"x"


class TestTheEndOfAPeer:
    def test_leaving_the_block_ends_the_handler_s_messages(self, client: Client, service: Service) -> None:
        service.gate.set()
        with bidi(client, "Hold") as stream:
            stream.send(b"x")
        soon(lambda: service.ended == ["1"], "the handler to see the end")
        with pytest.raises(RpcError, match="given up by this client"):
            stream.receive()

    def test_a_server_that_leaves_fails_the_stream(self, answerer: tuple[Client, Peer]) -> None:
        client, peer = answerer
        stream = bidi(client)
        assert peer.frame()[:3] == (1, REQUEST, OPEN)
        peer.send(1, DATA, b"before")
        peer.socket.close()
        assert stream.receive() == b"before"
        for wait in (stream.receive, stream.result, partial(stream.send, b"x")):
            with pytest.raises(ConnectionClosed):
                wait()
        stream.close()


class TestBytesOnTheWire:
    def test_data_where_one_answer_was_due_fails_the_call(self, answerer: tuple[Client, Peer]) -> None:
        client, peer = answerer
        stream = uploads(client)
        peer.send(1, DATA, b"x")
        with pytest.raises(RpcError, match="protocol error"):
            stream.result()

    def test_an_answer_where_messages_were_due_is_the_last_message(self, answerer: tuple[Client, Peer]) -> None:
        client, peer = answerer
        stream = replies(client, "Divide", b"")
        peer.send(1, DATA, b"a")
        peer.respond(1, b"b")
        assert list(stream) == [b"a", b"b"]
        stream = bidi(client)
        peer.respond(3)
        assert list(stream) == []
