"""What the blocking front promises, the asyncio front promises too: each test runs against both."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Code, ConnectionClosed, RpcError
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.fronts import CLIENTS, SERVERS, SERVICE, ClientFront, ServerFront
from tests.unit.ttrpc.peers import (
    CLOSED,
    DATA,
    MESSAGE_MAX,
    NO_DATA,
    OPEN,
    REQUEST,
    RESPONSE,
    SOON_S,
    Peer,
    soon,
    ttrpc_threads,
)

Serve = Callable[..., ServerFront]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


@pytest.fixture(params=SERVERS)
def serve(request: pytest.FixtureRequest, path: Path) -> Iterator[Serve]:
    """Starts a server, with limits."""
    started: list[ServerFront] = []

    def serve(**limits: int) -> ServerFront:
        server = SERVERS[request.param](**limits)
        server.serve_unix(path)
        started.append(server)
        return server

    yield serve
    for server in started:
        server.open_gate()
        server.close()
    soon(lambda: ttrpc_threads() == [], "all threads to end")


@pytest.fixture
def server(serve: Serve) -> ServerFront:
    return serve()


@pytest.fixture
def caller(server: ServerFront, path: Path) -> Iterator[Peer]:
    """A bare client of the server."""
    with connected(path) as peer:
        yield peer


@pytest.fixture(params=CLIENTS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which client."""
    name: str = request.param
    return name


@pytest.fixture
def answerer(kind: str) -> Iterator[tuple[ClientFront, Peer]]:
    """A client, and a bare server of its."""
    ours, theirs = socket.socketpair()
    client = CLIENTS[kind](ours)
    with Peer(theirs) as peer:
        yield client, peer
    client.close()


def connected(path: Path) -> Peer:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    return Peer(connection)


def failed(future: Future[bytes]) -> BaseException | None:
    return future.exception(SOON_S)


class TestServer:
    def test_statuses_of_handlers(self, caller: Peer) -> None:
        for stream_id, method in ((1, "Refuse"), (3, "Crash"), (5, "Nope")):
            caller.request(stream_id, SERVICE, method, b"p")
        caller.request(7, "test.Nobody", "Echo")
        assert sorted(caller.frame().status for _ in range(4)) == [
            (1, Code.FAILED_PRECONDITION, "not p"),
            (3, Code.PERMISSION_DENIED, "boom"),
            (5, Code.UNIMPLEMENTED, "method Nope"),
            (7, Code.UNIMPLEMENTED, "service test.Nobody"),
        ]

    def test_mistakes_of_the_caller_cost_one_stream(self, caller: Peer) -> None:
        caller.send(2, REQUEST)
        caller.send(9, DATA, b"x")
        caller.send(5, REQUEST, b"\xff")
        caller.socket.sendall(struct.pack(">IIBB", MESSAGE_MAX + 1, 7, REQUEST, 0) + bytes(MESSAGE_MAX + 1))
        assert [caller.frame().status[:2] for _ in range(4)] == [(2, 3), (9, 3), (5, 3), (7, 8)]
        caller.request(11, SERVICE, "Echo", b"still here")
        assert caller.frame() == (11, RESPONSE, 0, pb.Response(payload=b"still here").SerializeToString())

    def test_calls_are_answered_in_any_order(self, server: ServerFront, caller: Peer) -> None:
        caller.request(1, SERVICE, "Wait")
        assert server.service.waiting.acquire(timeout=SOON_S)
        caller.request(3, SERVICE, "Echo")
        assert caller.frame().stream_id == 3
        server.open_gate()
        assert caller.frame().stream_id == 1

    def test_a_call_over_the_limit_waits_for_its_turn(self, serve: Serve, path: Path) -> None:
        server = serve(max_calls=2)
        with connected(path) as caller:
            for stream_id in (1, 3, 5):
                caller.request(stream_id, SERVICE, "Wait")
            for _ in range(2):
                assert server.service.waiting.acquire(timeout=SOON_S)
            assert not server.service.waiting.acquire(timeout=0.05)
            server.open_gate()
            assert sorted(caller.frame().stream_id for _ in range(3)) == [1, 3, 5]

    def test_a_stream_over_the_limit_is_refused(self, serve: Serve, path: Path) -> None:
        serve(max_streams=2)
        with connected(path) as caller:
            for stream_id in (1, 3, 5):
                caller.request(stream_id, SERVICE, "Talk", flags=OPEN)
            assert caller.frame().status[:2] == (5, Code.RESOURCE_EXHAUSTED)
            caller.send(3, DATA, b"x")
            assert caller.frame() == (3, DATA, 0, b"x")
            caller.send(1, DATA, flags=CLOSED | NO_DATA)
            assert caller.frame() == (1, DATA, CLOSED | NO_DATA, b"")
            caller.request(7, SERVICE, "Talk", flags=CLOSED)
            assert caller.frame() == (7, DATA, CLOSED | NO_DATA, b"")

    def test_a_connection_over_the_limit_is_closed(self, serve: Serve, path: Path) -> None:
        serve(max_connections=1)
        with connected(path) as first, connected(path) as second:
            assert second.is_closed()
            first.request(1, SERVICE, "Echo")
            assert first.frame().stream_id == 1

    @pytest.mark.usefixtures("impatient")
    def test_a_stream_that_nobody_takes_fails_and_the_connection_goes_on(
        self, server: ServerFront, caller: Peer
    ) -> None:
        caller.request(1, SERVICE, "Deaf", flags=OPEN)
        assert server.service.waiting.acquire(timeout=SOON_S)
        for _ in range(20):
            caller.send(1, DATA, bytes(100_000))
        caller.request(3, SERVICE, "Echo")
        assert caller.frame().status[:2] == (1, Code.RESOURCE_EXHAUSTED)
        while (frame := caller.frame()).stream_id == 1:  # each message that was still under way is told so
            assert frame.status == (1, Code.INVALID_ARGUMENT, "StreamID is no longer active")
        assert frame.stream_id == 3

    def test_a_stream_that_is_taken_late_loses_nothing(self, server: ServerFront, caller: Peer) -> None:
        caller.request(1, SERVICE, "Deaf", flags=OPEN)
        assert server.service.waiting.acquire(timeout=SOON_S)
        for _ in range(10):
            caller.send(1, DATA, bytes(90_000))
        server.open_gate()
        for _ in range(40):
            caller.send(1, DATA, bytes(90_000))
        caller.send(1, DATA, flags=CLOSED | NO_DATA)
        assert pb.Response.FromString(caller.frame().data).payload == b"50"

    def test_a_message_too_long_for_its_stream_ends_the_stream(self, caller: Peer) -> None:
        caller.request(1, SERVICE, "Talk", flags=OPEN)
        caller.socket.sendall(struct.pack(">IIBB", MESSAGE_MAX + 1, 1, DATA, 0) + bytes(MESSAGE_MAX + 1))
        assert caller.frame().status[:2] == (1, Code.RESOURCE_EXHAUSTED)
        caller.request(3, SERVICE, "Echo")
        assert caller.frame().stream_id == 3

    @pytest.mark.parametrize(("method", "flags"), [("Wait", 0), ("Talk", OPEN)])
    def test_a_handler_sees_that_its_caller_has_gone(
        self, server: ServerFront, caller: Peer, method: str, flags: int
    ) -> None:
        caller.request(1, SERVICE, method, flags=flags)
        caller.request(3, SERVICE, "Echo")
        assert caller.frame().stream_id == 3
        caller.socket.close()
        assert server.service.cancelled.wait(SOON_S)

    def test_interceptors_see_each_call_the_first_outermost(self, server: ServerFront, caller: Peer) -> None:
        caller.request(1, SERVICE, "Echo")
        assert caller.frame().stream_id == 1
        caller.request(3, SERVICE, "Talk", flags=CLOSED)
        assert caller.frame().stream_id == 3
        assert server.service.trail == ["outer /test.Front/Echo", "inner", "outer /test.Front/Talk", "inner"]

    def test_closing_lets_calls_finish_and_takes_no_more(self, server: ServerFront, caller: Peer, path: Path) -> None:
        caller.request(1, SERVICE, "Wait", b"done")
        assert server.service.waiting.acquire(timeout=SOON_S)
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(server.close, SOON_S)
            soon(lambda: not path.exists(), "the socket is gone")
            with pytest.raises(OSError):
                connected(path)
            ids = iter(range(3, 20_003, 2))
            code = 0
            while code == 0:  # calls that come before the server has got so far are answered
                stream_id = next(ids)
                caller.request(stream_id, SERVICE, "Echo")
                code = caller.frame().status[1]
            assert code == Code.UNAVAILABLE
            server.open_gate()
            assert pb.Response.FromString(caller.frame().data).payload == b"done"
            assert caller.is_closed()
            closing.result(SOON_S)

    def test_closing_without_grace_cuts_the_calls(self, server: ServerFront, caller: Peer) -> None:
        caller.request(1, SERVICE, "Wait")
        assert server.service.waiting.acquire(timeout=SOON_S)
        server.close(0.0)
        assert caller.is_closed()
        assert server.service.cancelled.wait(SOON_S)

    def test_a_caller_that_does_not_read_is_not_read_either(self, server: ServerFront, caller: Peer) -> None:
        """So what it makes the server hold is bounded, by its own socket in the end."""
        caller.socket.settimeout(0.5)
        request = pb.Request(service=SERVICE, method="Echo", payload=bytes(1 << 20)).SerializeToString()
        sent = 0
        with pytest.raises(TimeoutError):
            for stream_id in range(1, 401, 2):
                caller.send(stream_id, REQUEST, request)
                sent += 1
        assert sent < 100

    def test_a_caller_that_breaks_the_rules_and_does_not_read_is_not_read_either(self, caller: Peer) -> None:
        caller.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            caller.socket.sendall(struct.pack(">IIBB", 0, 2, REQUEST, 0) * 500_000)


class TestClient:
    def test_answers_find_their_callers_in_any_order(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        calls = {}
        for name in (b"a", b"b", b"c"):
            answer = client.begin("Echo", name)
            calls[peer.frame().stream_id] = (answer, name)
        assert list(calls) == [1, 3, 5]
        for stream_id in (5, 1, 3):
            peer.respond(stream_id, calls[stream_id][1])
        assert [answer.result(SOON_S) for answer, _name in calls.values()] == [b"a", b"b", b"c"]

    def test_a_deadline_is_told_and_kept_and_a_late_answer_disturbs_nobody(
        self, answerer: tuple[ClientFront, Peer]
    ) -> None:
        client, peer = answerer
        before = time.monotonic()
        answer = client.begin("Echo", b"", 0.05)
        assert 0 < pb.Request.FromString(peer.frame().data).timeout_nano <= 50_000_000
        error = failed(answer)
        assert isinstance(error, RpcError)
        assert error.code == Code.DEADLINE_EXCEEDED
        assert 0.05 <= time.monotonic() - before < SOON_S
        peer.respond(1, b"late")
        after = client.begin("Echo")
        peer.respond(peer.frame().stream_id, b"in time")
        assert after.result(SOON_S) == b"in time"

    def test_the_end_of_the_server_ends_what_waits_and_what_comes(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        answers = [client.begin("Echo") for _ in range(3)]
        stream = client.talk("Talk")
        for _ in range(4):
            peer.frame()
        peer.socket.close()
        assert [type(failed(answer)) for answer in answers] == [ConnectionClosed] * 3
        with pytest.raises(ConnectionClosed):
            stream.receive()
        with pytest.raises(ConnectionClosed):
            client.call("Echo")
        with pytest.raises(ConnectionClosed):
            stream.send(b"x")
        soon(lambda: "closed" in client.trail, "the callback has run")
        client.close()
        assert client.trail.count("closed") == 1

    def test_answers_before_the_end_count(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        answer = client.begin("Echo")
        peer.frame()
        peer.respond(1, b"last")
        peer.socket.close()
        assert answer.result(SOON_S) == b"last"

    def test_closing_the_client_ends_its_calls(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        answer = client.begin("Echo", timeout_s=None)
        peer.frame()
        client.close()
        assert isinstance(failed(answer), ConnectionClosed)
        assert client.trail.count("closed") == 1

    def test_interceptors_see_each_call_the_first_outermost(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        answer = client.begin("Echo")
        peer.respond(peer.frame().stream_id, b"x")
        assert answer.result(SOON_S) == b"x"
        client.talk("Talk")
        assert client.trail == ["outer /test.Front/Echo", "inner", "outer /test.Front/Talk", "inner"]

    def test_a_request_or_message_that_is_too_long_is_not_sent(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        with pytest.raises(RpcError) as caught:
            client.call("Echo", bytes(MESSAGE_MAX))
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        stream = client.talk("Talk")
        assert peer.frame().stream_id == 1
        with pytest.raises(RpcError) as caught:
            stream.send(bytes(MESSAGE_MAX + 1))
        assert caught.value.code == Code.RESOURCE_EXHAUSTED
        stream.send(b"x")
        assert peer.frame() == (1, DATA, 0, b"x")

    def test_frames_of_a_stream(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk")
        stream.send(b"a")
        stream.send(b"")
        stream.close_send()
        assert [peer.frame()[:3] for _ in range(4)] == [
            (1, REQUEST, OPEN),
            (1, DATA, 0),
            (1, DATA, 0),
            (1, DATA, CLOSED | NO_DATA),
        ]
        with pytest.raises(ProtocolError):
            stream.send(b"after the end")
        client.talk("Talk", b"p", client=False)
        request = peer.frame()
        assert (request.flags, pb.Request.FromString(request.data).payload) == (CLOSED, b"p")

    def test_messages_come_before_the_status_that_ends_them(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk")
        peer.frame()
        peer.send(1, DATA, b"a")
        peer.fail(1, Code.ABORTED, "no more")
        assert stream.receive() == b"a"
        for use in (stream.receive, stream.result, lambda: stream.send(b"x")):
            with pytest.raises(RpcError) as caught:
                use()
            assert (caught.value.code, caught.value.message) == (Code.ABORTED, "no more")

    def test_sending_after_the_servers_end_is_the_end_of_the_file(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk")
        peer.frame()
        peer.send(1, DATA, flags=CLOSED | NO_DATA)
        assert stream.receive() is None
        with pytest.raises(EOFError):
            stream.send(b"x")
        assert stream.result() == b""

    def test_one_answer_to_many_messages(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Sum", server=False)
        stream.send(b"1")
        peer.frame(), peer.frame()
        peer.respond(1, b"sum")
        assert stream.result() == b"sum"

    @pytest.mark.usefixtures("impatient")
    def test_a_stream_that_nobody_takes_fails_and_calls_go_on(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk")
        answer = client.begin("Echo")
        peer.frame(), peer.frame()
        for _ in range(20):
            peer.send(1, DATA, bytes(100_000))
        peer.respond(3, b"x")
        assert answer.result(SOON_S) == b"x"
        with pytest.raises(RpcError) as caught:
            while stream.receive() is not None:
                pass
        assert caught.value.code == Code.RESOURCE_EXHAUSTED

    def test_a_streams_deadline_ends_it_and_the_connection_lives(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk", timeout_s=0.05)
        for use in (stream.receive, stream.result, lambda: stream.send(b"x")):
            with pytest.raises(RpcError) as caught:
                use()
            assert caught.value.code == Code.DEADLINE_EXCEEDED
        peer.frame()
        peer.send(1, DATA, b"late")
        answer = client.begin("Echo")
        peer.respond(peer.frame().stream_id, b"x")
        assert answer.result(SOON_S) == b"x"

    def test_giving_a_stream_up_tells_the_server_and_drops_the_rest(self, answerer: tuple[ClientFront, Peer]) -> None:
        client, peer = answerer
        stream = client.talk("Talk")
        stream.close()
        assert [peer.frame().kind, peer.frame().flags] == [REQUEST, CLOSED | NO_DATA]
        peer.send(1, DATA, b"late")
        answer = client.begin("Echo")
        peer.respond(peer.frame().stream_id, b"x")
        assert answer.result(SOON_S) == b"x"
