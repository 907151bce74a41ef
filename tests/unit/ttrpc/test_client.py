"""What a client owes to its callers whatever the server does: answers, interceptors, and the end of the connection."""

from __future__ import annotations

import dataclasses
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from nri_rdma.ttrpc import Client, ClientInterceptor, Code, ConnectionClosed, Outgoing, RpcError
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.peers import MESSAGE_MAX, REQUEST, RESPONSE, SOON_S, Peer, soon, ttrpc_threads

R = TypeVar("R")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Peer]]:
    ours, theirs = socket.socketpair()
    with Peer(theirs) as peer:
        yield ours, peer


def asks(pool: ThreadPoolExecutor, client: Client, payload: bytes = b"") -> Callable[[], bytes]:
    """Start a call; the result waits for it."""
    future = pool.submit(client.call, "s", "m", payload, timeout_s=SOON_S)
    return lambda: future.result(SOON_S)


class TestAnswers:
    def test_an_answer_that_is_too_long_fails_its_own_call(self, pair: tuple[socket.socket, Peer]) -> None:
        connection, peer = pair
        with Client(connection) as client, ThreadPoolExecutor(1) as pool:
            result = asks(pool, client)
            peer.frame()
            peer.send(1, RESPONSE, bytes(MESSAGE_MAX + 1))
            with pytest.raises(RpcError, match="RESOURCE_EXHAUSTED: message length 4194305"):
                result()
            result = asks(pool, client)
            peer.frame()
            peer.respond(3, b"x")
            assert result() == b"x"

    def test_ids_are_odd_and_grow_on_the_wire_whoever_calls(self, pair: tuple[socket.socket, Peer]) -> None:
        connection, peer = pair
        with Client(connection) as client, ThreadPoolExecutor(8) as pool:
            results = [asks(pool, client, b"%d" % n) for n in range(8)]
            ids = [peer.frame().stream_id for _ in results]
            assert ids == [1, 3, 5, 7, 9, 11, 13, 15]
            for stream_id in ids:
                peer.respond(stream_id)
            assert [result() for result in results] == [b""] * 8

    def test_a_message_of_which_nothing_could_be_written_leaves_the_connection_usable(
        self, pair: tuple[socket.socket, Peer]
    ) -> None:
        """A small message is written whole or not at all; the socket is full of those before it."""
        connection, peer = pair
        with Client(connection) as client, ThreadPoolExecutor(1) as pool:
            stream = client.stream("s", "m", client_streams=True, server_streams=True, timeout_s=0.3)
            sent = 0
            with pytest.raises(RpcError, match="DEADLINE_EXCEEDED: not sent in time: the server does not read"):
                while True:
                    stream.send(b"%d" % sent)
                    sent += 1
            result = asks(pool, client)
            assert peer.frame().kind == REQUEST
            assert [peer.frame().data for _ in range(sent)] == [b"%d" % n for n in range(sent)]
            found = peer.frame()
            assert found.kind == REQUEST, "what was not sent in time is not sent later"
            peer.respond(found.stream_id, b"x")
            assert result() == b"x"

    def test_a_request_that_could_not_be_begun_leaves_the_connection_usable(
        self, pair: tuple[socket.socket, Peer]
    ) -> None:
        """The socket is full of streams' messages: nothing of the request was written."""
        connection, peer = pair
        with Client(connection) as client, ThreadPoolExecutor(2) as pool:
            stream = client.stream("s", "m", client_streams=True, server_streams=True, timeout_s=None)
            filling = pool.submit(stream.send, bytes(MESSAGE_MAX))
            soon(client._channel._sending.locked, "the message to be on its way")
            with pytest.raises(RpcError, match="another message is being written"):
                client.call("s", "m", b"", timeout_s=0.05)
            assert peer.frame().kind == REQUEST
            assert len(peer.frame().data) == MESSAGE_MAX
            filling.result(SOON_S)
            result = asks(pool, client)
            peer.respond(peer.frame().stream_id, b"x")
            assert result() == b"x"
            stream.close()


class TestInterceptors:
    def test_they_wrap_calls_and_streams_the_first_one_outermost(self, pair: tuple[socket.socket, Peer]) -> None:
        connection, peer = pair
        log: list[str] = []

        class Named:
            def __init__(self, name: str) -> None:
                self.name = name

            def __call__(self, call: Outgoing, proceed: Callable[[Outgoing], R], /) -> R:
                log.append(f"{self.name} {call.full_method}")
                result = proceed(dataclasses.replace(call, metadata=(*call.metadata, ("Who", self.name))))
                log.append(f"{self.name} done")
                return result

        chain: list[ClientInterceptor] = [Named("a"), Named("b")]
        with Client(connection, interceptors=chain) as client, ThreadPoolExecutor(1) as pool:
            result = asks(pool, client)
            request = pb.Request.FromString(peer.frame().data)
            assert [(pair.key, pair.value) for pair in request.metadata] == [("who", "a"), ("who", "b")]
            peer.respond(1, b"x")
            assert result() == b"x"
            client.stream("s", "n", client_streams=True, server_streams=True, timeout_s=None)
            assert len(pb.Request.FromString(peer.frame().data).metadata) == 2
        assert log == ["a /s/m", "b /s/m", "b done", "a done", "a /s/n", "b /s/n", "b done", "a done"]

    def test_one_may_refuse(self, pair: tuple[socket.socket, Peer]) -> None:
        def refuse(call: Outgoing, proceed: Callable[[Outgoing], R], /) -> R:
            raise RpcError(Code.PERMISSION_DENIED, f"not {call.full_method}")

        with Client(pair[0], interceptors=[refuse]) as client, pytest.raises(RpcError, match="not /s/m"):
            client.call("s", "m", b"", timeout_s=1)


class TestOnClose:
    """Go: TestUserOnCloseWait."""

    @staticmethod
    def watched(connection: socket.socket) -> tuple[Client, list[str], threading.Event]:
        seen: list[str] = []
        may_return = threading.Event()

        def on_close() -> None:
            seen.append(threading.current_thread().name)
            may_return.wait(SOON_S)
            seen.append("returned")

        return Client(connection, on_close=on_close), seen, may_return

    def test_it_runs_once_when_the_server_goes_while_nobody_calls(self, pair: tuple[socket.socket, Peer]) -> None:
        client, seen, may_return = self.watched(pair[0])
        may_return.set()
        pair[1].socket.close()
        soon(lambda: seen == ["ttrpc-watch", "returned"], "the callback")
        with pytest.raises(ConnectionClosed, match="closed by the peer"):
            client.call("s", "m", b"", timeout_s=1)
        client.close()
        client.close()
        assert seen == ["ttrpc-watch", "returned"] and ttrpc_threads() == []

    def test_close_waits_for_it(self, pair: tuple[socket.socket, Peer]) -> None:
        client, seen, may_return = self.watched(pair[0])
        with ThreadPoolExecutor(1) as pool:
            closing = pool.submit(client.close)
            soon(lambda: bool(seen), "the callback to begin")
            assert not closing.done()
            may_return.set()
            closing.result(SOON_S)
        assert seen == ["ttrpc-watch", "returned"]

    def test_it_may_close_the_client(self, pair: tuple[socket.socket, Peer]) -> None:
        done = threading.Event()
        box: list[Client] = []

        def on_close() -> None:
            box[0].close()
            done.set()

        box.append(Client(pair[0], on_close=on_close))
        pair[1].socket.close()
        assert done.wait(SOON_S)

    def test_it_does_not_run_while_the_connection_lives(self, pair: tuple[socket.socket, Peer]) -> None:
        connection, peer = pair
        client, seen, may_return = self.watched(connection)
        may_return.set()
        with ThreadPoolExecutor(1) as pool:
            for n in range(20):
                result = asks(pool, client)
                peer.respond(peer.frame().stream_id, b"%d" % n)
                assert result() == b"%d" % n
            assert seen == []
            result = asks(pool, client)
            peer.frame()
            peer.respond(41, b"the last answer counts")
            peer.socket.close()
            assert result() == b"the last answer counts"
        client.close()
        assert seen == ["ttrpc-watch", "returned"]


def test_a_deadline_is_sent_as_what_is_left_of_it(pair: tuple[socket.socket, Peer]) -> None:
    connection, peer = pair
    with Client(connection) as client:
        before = time.monotonic()
        with pytest.raises(RpcError, match="DEADLINE_EXCEEDED"):
            client.call("s", "m", b"", timeout_s=0.2)
        assert 0.2 <= time.monotonic() - before < 5
        assert 0.1e9 < pb.Request.FromString(peer.frame().data).timeout_nano <= 0.2e9


def test_the_error_of_a_path_without_a_server_names_the_path(tmp_path: Path) -> None:
    missing = str(tmp_path / "nosuch.sock")
    with pytest.raises(FileNotFoundError) as caught:
        Client(missing)
    assert str(caught.value) == f"[Errno 2] No such file or directory: {missing!r}"


def test_a_path_that_no_socket_can_have_is_refused_in_the_systems_words() -> None:
    with pytest.raises(OSError, match=r"^AF_UNIX path too long$"):
        Client("x" * 200)


def test_a_deadline_further_away_than_poll_can_wait_is_kept(pair: tuple[socket.socket, Peer]) -> None:
    connection, peer = pair
    month_s = 30 * 24 * 3600.0  # poll(2) takes its milliseconds as an int
    with Client(connection) as client, ThreadPoolExecutor(1) as pool:
        result = pool.submit(client.call, "s", "m", b"", timeout_s=month_s)
        peer.frame()
        peer.respond(1, b"x")
        assert result.result(SOON_S) == b"x"
