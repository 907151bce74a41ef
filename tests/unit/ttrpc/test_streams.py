"""Calls of messages over real sockets: our client and our server, and each against the bare bytes of the other."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Call, Client, Code, ConnectionClosed, RpcError, Server, Stream, Streaming
from nri_rdma.ttrpc.clientstream import ClientStream
from nri_rdma.ttrpc.inbox import FULL, OVERHEAD, PATIENCE_S
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.peers import (
    CLOSED,
    DATA,
    MESSAGE_MAX,
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

SERVICE = "test.Streams"


class Service:
    """Handlers of every kind. Hold does not take its messages until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.ended: list[str] = []
        self.calls: list[Call] = []

    def handlers(self) -> dict[tuple[str, str], object]:
        def both(handler: object) -> Streaming:
            return Streaming(handler=handler, client_streams=True, server_streams=True)  # type: ignore[arg-type] # bound

        return {
            (SERVICE, "Unary"): lambda call: call.payload,
            (SERVICE, "EchoStream"): both(self.echo),
            (SERVICE, "Sum"): Streaming(handler=self.sum, client_streams=True, server_streams=False),
            (SERVICE, "Divide"): Streaming(handler=self.divide, client_streams=False, server_streams=True),
            (SERVICE, "Last"): Streaming(
                handler=lambda call, stream: b"last", client_streams=False, server_streams=True
            ),
            (SERVICE, "Nothing"): Streaming(
                handler=lambda call, stream: None, client_streams=True, server_streams=False
            ),
            (SERVICE, "Refuse"): both(self.refuse),
            (SERVICE, "Hold"): both(self.hold),
            (SERVICE, "Fan"): both(self.fan),
            (SERVICE, "Big"): both(self.big),
            (SERVICE, "Flood"): Streaming(handler=self.flood, client_streams=False, server_streams=True),
        }

    def echo(self, call: Call, stream: Stream) -> None:
        self.calls.append(call)
        for payload in stream:
            stream.send(b"echo " + payload)

    def sum(self, call: Call, stream: Stream) -> bytes:
        self.calls.append(call)
        return b"%d" % sum(int(payload or b"0") for payload in stream)

    def divide(self, call: Call, stream: Stream) -> None:
        request = stream.receive()
        assert request is not None and stream.receive() is None
        for n in range(int(request or b"2")):
            stream.send(b"%d" % n)

    def refuse(self, call: Call, stream: Stream) -> None:
        stream.send(b"one")
        stream.receive()
        raise RpcError(Code.ABORTED, "no more")

    def hold(self, call: Call, stream: Stream) -> bytes | None:
        """Says how it ended."""
        self.calls.append(call)
        self.entered.release()
        self.gate.wait(SOON_S)
        taken = 0
        try:
            for _ in stream:
                taken += 1
        except Exception as error:
            self.ended.append(f"{taken} then {type(error).__name__} {error}, cancelled {call.cancelled.is_set()}")
            raise
        self.ended.append(f"{taken}")
        return b"%d" % taken

    def fan(self, call: Call, stream: Stream) -> None:
        """Ten threads send for each message, as Go's EchoNullStream does."""
        with ThreadPoolExecutor(10) as pool:
            for _ in stream:
                for _ in range(10):
                    pool.submit(stream.send, b"")

    def big(self, call: Call, stream: Stream) -> None:
        for payload in stream:
            stream.send(bytes(int(payload)))

    def flood(self, call: Call, stream: Stream) -> None:
        self.entered.release()
        for n in range(int(stream.receive() or b"0")):
            stream.send(b"%d" % n * 100)


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


@pytest.fixture
def answerer() -> Iterator[tuple[Client, Peer]]:
    """A client, and the bare bytes of its server."""
    ours, theirs = socket.socketpair()
    with Client(ours) as client, Peer(theirs) as peer:
        yield client, peer


def bidi(client: Client, method: str = "EchoStream", timeout_s: float | None = SOON_S) -> ClientStream:
    return client.stream(SERVICE, method, client_streams=True, server_streams=True, timeout_s=timeout_s)


def replies(client: Client, method: str, payload: bytes) -> ClientStream:
    return client.stream(SERVICE, method, payload, client_streams=False, server_streams=True, timeout_s=SOON_S)


def uploads(client: Client, method: str = "Sum") -> ClientStream:
    return client.stream(SERVICE, method, client_streams=True, server_streams=False, timeout_s=SOON_S)


def send_all(stream: ClientStream, payloads: list[bytes]) -> None:
    for payload in payloads:
        stream.send(payload)


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
    def test_a_status_ends_the_stream_after_the_messages_before_it(self, client: Client) -> None:
        stream = bidi(client, "Refuse")
        stream.send(b"x")
        assert stream.receive() == b"one"
        for _ in range(2):
            with pytest.raises(RpcError, match="ABORTED: no more"):
                stream.receive()
        with pytest.raises(RpcError, match="ABORTED: no more"):
            stream.send(b"y")

    @pytest.mark.parametrize(("service_name", "method"), [("test.Nobody", "M"), (SERVICE, "Nope")])
    def test_unknown_methods(self, client: Client, service_name: str, method: str) -> None:
        stream = client.stream(service_name, method, client_streams=True, server_streams=True, timeout_s=SOON_S)
        with pytest.raises(RpcError) as caught:
            stream.receive()
        assert caught.value.code == Code.UNIMPLEMENTED

    def test_sending_after_the_server_s_end(self, client: Client) -> None:
        stream = bidi(client, "Last")
        assert list(stream) == [b"last"]
        with pytest.raises(EOFError, match="the server has ended the stream"):
            stream.send(b"x")

    def test_sending_where_nothing_is_to_be_sent(self, client: Client) -> None:
        with replies(client, "Divide", b"1") as stream, pytest.raises(ProtocolError, match="takes no messages"):
            stream.send(b"x")
        with uploads(client) as stream:
            stream.close_send()
            with pytest.raises(ProtocolError, match="takes no messages"):
                stream.send(b"x")
            assert stream.result() == b"0"

    def test_a_handler_of_one_answer_sends_no_messages(self, path: Path) -> None:
        def chatty(call: Call, stream: Stream) -> bytes:
            stream.send(b"x")
            return b""

        with Server({("s", "m"): Streaming(handler=chatty, client_streams=True, server_streams=False)}) as server:
            server.serve_unix(path)
            with Client(path) as client, pytest.raises(RpcError, match="has one answer: the handler returns it"):
                client.stream("s", "m", client_streams=True, server_streams=False, timeout_s=SOON_S).result()

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

    def test_a_message_of_ours_that_is_too_long_is_not_sent(self, client: Client) -> None:
        with uploads(client) as stream:
            stream.send(b"1")
            with pytest.raises(RpcError, match="exceed maximum message size") as caught:
                stream.send(bytes(MESSAGE_MAX + 1))
            assert caught.value.code == Code.RESOURCE_EXHAUSTED
            stream.send(b"2")
            assert stream.result() == b"3"

    def test_streams_over_the_limit_are_refused_and_the_others_go_on(self, client: Client, service: Service) -> None:
        streams = [bidi(client) for _ in range(8)]
        for stream in streams:
            stream.send(b"x")
            assert stream.receive() == b"echo x"
        with pytest.raises(RpcError, match="more than 8 streams") as caught:
            bidi(client).receive()
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        for stream in streams:
            assert stream.result() == b""
        with bidi(client) as stream:  # and there is room again as soon as the end is known
            stream.send(b"y")
            assert stream.receive() == b"echo y"


class TestTime:
    def test_a_receive_that_is_not_answered_in_time_leaves_the_stream_alone(self, client: Client) -> None:
        with bidi(client) as stream:
            before = time.monotonic()
            with pytest.raises(TimeoutError):
                stream.receive(0.05)
            assert 0.05 <= time.monotonic() - before < 2
            stream.send(b"x")
            assert stream.receive() == b"echo x"

    def test_the_deadline_ends_the_stream_here_and_the_connection_lives(self, client: Client, service: Service) -> None:
        stream = bidi(client, "Hold", timeout_s=0.1)
        for wait in (stream.receive, stream.result):
            with pytest.raises(RpcError) as caught:
                wait(SOON_S)
            assert caught.value.code == Code.DEADLINE_EXCEEDED
        service.gate.set()
        assert client.call(SERVICE, "Unary", b"x", timeout_s=SOON_S) == b"x"

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

    @pytest.mark.usefixtures("impatient")
    def test_messages_without_bytes_fill_a_stream_too(self, caller: Peer, service: Service) -> None:
        caller.request(1, SERVICE, "Hold", flags=OPEN)
        frame = b"\0\0\0\0" + b"\0\0\0\1" + b"\3\0"
        caller.socket.sendall(frame * (FULL // OVERHEAD + 2))
        assert caller.frame().status[:2] == (1, Code.RESOURCE_EXHAUSTED)

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

    @pytest.mark.usefixtures("impatient")
    def test_a_client_s_stream_that_nobody_takes_fails_and_calls_go_on(self, client: Client, service: Service) -> None:
        stream = replies(client, "Flood", b"%d" % (FULL // 100))
        assert service.entered.acquire(timeout=SOON_S)
        before = time.monotonic()
        while "the stream is not given up":
            assert client.call(SERVICE, "Unary", b"x", timeout_s=SOON_S) == b"x"
            if stream._pending.outcome is not None:
                break
        assert time.monotonic() - before < 5
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
    def test_a_client_that_leaves_cancels_its_streams(self, server: Server, path: Path, service: Service) -> None:
        service.gate.set()
        with Client(path) as client:
            bidi(client, "Hold").send(b"x")
            assert service.entered.acquire(timeout=SOON_S)
        soon(lambda: service.ended != [], "the handler to end")
        assert service.ended == ["1 then ConnectionClosed the caller has gone, cancelled True"]
        soon(lambda: not server._connections, "the connection to be forgotten")

    def test_a_handler_that_is_busy_sees_that_its_caller_has_gone(
        self, server: Server, path: Path, service: Service
    ) -> None:
        with Client(path) as client:
            stream = bidi(client, "Hold")
            assert service.entered.acquire(timeout=SOON_S)
            assert not service.calls[0].cancelled.is_set()
            del stream
        assert service.calls[0].cancelled.wait(SOON_S)

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
    def test_of_a_bidirectional_call(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "EchoStream", flags=OPEN)
        caller.send(1, DATA, b"a")
        assert caller.frame() == Frame(1, DATA, 0, b"echo a")
        caller.send(1, DATA, b"", CLOSED | NO_DATA)
        assert caller.frame() == Frame(1, DATA, CLOSED | NO_DATA, b"")

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
