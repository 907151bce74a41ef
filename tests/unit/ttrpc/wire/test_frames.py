"""Frames: their limits, any chunking, garbage, and two peers joined in memory."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.ttrpc.wire import (
    MESSAGE_MAX,
    ClientConnection,
    Data,
    End,
    Rejected,
    Request,
    Response,
    ServerConnection,
)
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.wire.framing import (
    DATA,
    REQUEST,
    RESPONSE,
    answered,
    fields,
    frame,
    only_request,
    request_frame,
    response_frame,
    served,
    status_of,
)


def test_the_longest_message_is_taken() -> None:
    overhead = len(request_frame(1, bytes(1 << 20))) - 10 - (1 << 20)
    payload = bytes(MESSAGE_MAX - overhead - 1)
    data = request_frame(1, payload)
    assert MESSAGE_MAX - 2 <= len(data) - 10 <= MESSAGE_MAX
    assert len(only_request(served(ServerConnection(), data)).payload) == len(payload)


@pytest.mark.parametrize("length", [MESSAGE_MAX + 1, 30 << 20])
def test_oversize_streams_through_without_being_kept(length: int) -> None:
    server, chunk = ServerConnection(), bytes(1 << 16)
    events = served(server, struct.pack(">IIBB", length, 7, REQUEST, 0))
    left = length
    while left:
        step = chunk[:left]
        events += served(server, step)
        left -= len(step)
        assert len(server._buffer) <= len(chunk)
    (event,) = events
    assert isinstance(event, Rejected) and status_of(event.reply)[:2] == (7, 8)
    assert only_request(served(server, request_frame(1))).stream_id == 1


def test_a_hostile_length_allocates_nothing_and_says_nothing() -> None:
    server = ServerConnection()
    assert served(server, struct.pack(">IIBB", 0xFFFFFFFF, 1, REQUEST, 0), b"abc") == []
    assert len(server._buffer) <= 3


def test_a_large_message_is_let_go_while_the_peer_is_silent() -> None:
    server = ServerConnection()
    served(server, request_frame(1, bytes(1 << 20)))
    assert len(server._buffer) == 0


@pytest.mark.parametrize("sizes", [[1], [4095], [4096], [65536], [1, 4096, 10, 70_000, 2, 3], [9, 1, 100_000]])
def test_pieces_of_any_size_make_the_same_frames(sizes: list[int]) -> None:
    client, server = ClientConnection(), ServerConnection()
    payloads = [random.Random(n).randbytes(n) for n in (300_000, 0, 5, 50_000, 4096)]
    stream = b"".join(client.request("s", "m", payload)[1] for payload in payloads)
    got, position, turn = [], 0, 0
    while position < len(stream):
        piece = stream[position : position + sizes[turn % len(sizes)]]
        server.receive_data(piece)
        position, turn = position + len(piece), turn + 1
        while (event := server.next_event()) is not None:
            assert isinstance(event, Request)
            got.append(event.payload)
    assert got == payloads


class TestChunking:
    """The same result whole, byte by byte, at every split, and with trailing bytes."""

    STREAM = request_frame(1, b"abc") + frame(2, REQUEST, b"x") + frame(1, DATA) + request_frame(3) + frame(5, REQUEST)

    def test_requests(self) -> None:
        whole = [fields(event) for event in served(ServerConnection(), self.STREAM)]
        assert len(whole) == 5
        each = [self.STREAM[i : i + 1] for i in range(len(self.STREAM))]
        assert [fields(event) for event in served(ServerConnection(), *each)] == whole
        for cut in range(len(self.STREAM) + 1):
            halves = self.STREAM[:cut], self.STREAM[cut:]
            assert [fields(event) for event in served(ServerConnection(), *halves)] == whole, cut

    def test_trailing_bytes_wait(self) -> None:
        server = ServerConnection()
        tail = request_frame(3, b"xyz")
        for cut in range(len(tail)):
            server = ServerConnection()
            assert len(served(server, request_frame(1) + tail[:cut])) == 1
            assert only_request(served(server, tail[cut:])).payload == b"xyz"

    def test_responses(self) -> None:
        stream = response_frame(1, b"abc") + frame(3, DATA, b"x") + frame(5, RESPONSE)

        def run(*chunks: bytes) -> list[Response]:
            client = ClientConnection()
            for _ in range(3):
                client.request("s", "m", b"")
            return answered(client, *chunks)

        whole = run(stream)
        assert len(whole) == 3
        assert run(*(stream[i : i + 1] for i in range(len(stream)))) == whole
        for cut in range(len(stream) + 1):
            assert run(stream[:cut], stream[cut:]) == whole, cut

    def test_events_may_be_taken_later(self) -> None:
        server = ServerConnection()
        for i in range(len(self.STREAM)):
            server.receive_data(self.STREAM[i : i + 1])
        assert len(served(server, b"")) == 5


headers = st.builds(
    frame, st.integers(0, 9), st.sampled_from([0, 1, 2, 3, 127]), st.binary(max_size=20), st.integers(0, 255)
)


class TestGarbage:
    """ProtocolError or events, never anything else, and every step consumes."""

    @given(chunks=st.lists(st.binary(max_size=40) | headers, max_size=12))
    def test_server(self, chunks: list[bytes]) -> None:
        server, total = ServerConnection(), sum(map(len, chunks))
        events = served(server, *chunks)
        assert len(events) <= 2 * (total // 10)  # a message that ends its stream is two
        for event in events:
            assert isinstance(event, Request | Data | End | Rejected)
        for stream_id in {event.stream_id for event in events if isinstance(event, Request)}:
            with contextlib.suppress(ProtocolError):  # the peer has broken the stream since
                server.respond(stream_id, b"")
        assert server.open_streams == 0

    @given(chunks=st.lists(st.binary(max_size=40) | headers, max_size=12))
    def test_client(self, chunks: list[bytes]) -> None:
        client = ClientConnection()
        for client_streams, server_streams in [
            (False, False),
            (True, False),
            (False, True),
            (True, True),
            (True, True),
        ]:
            client.open_stream("s", "m", client_streams=client_streams, server_streams=server_streams)
        events = answered(client, *chunks)
        assert len([event for event in events if isinstance(event, Response | End)]) <= 5


class TestTwoPeersJoinedInMemory:
    @staticmethod
    def exchange(cut: Callable[[bytes], list[bytes]], payload: bytes) -> None:
        client, server = ClientConnection(), ServerConnection()
        stream_id, message = client.request("svc", "Echo", payload, timeout_ns=7, metadata=[("K", "v")])
        request = only_request(served(server, *cut(message)))
        assert (request.service, request.method, request.timeout_ns) == ("svc", "Echo", 7)
        assert (request.payload, request.metadata) == (payload, (("k", "v"),))
        answer = server.respond(request.stream_id, request.payload)
        assert answered(client, *cut(answer)) == [Response(stream_id, 0, "", payload)]

    @pytest.mark.parametrize("size", [0, 1, 300, 4000, 4086, 4097, 70000, 4_000_000])
    def test_whole(self, size: int) -> None:
        self.exchange(lambda data: [data], bytes(size))

    @pytest.mark.parametrize("size", [0, 300, 5000])
    def test_byte_by_byte(self, size: int) -> None:
        self.exchange(lambda data: [data[i : i + 1] for i in range(len(data))], bytes(size))

    def test_large_in_small_receives(self) -> None:
        self.exchange(lambda data: [data[i : i + 4096] for i in range(0, len(data), 4096)], bytes(4_000_000))
