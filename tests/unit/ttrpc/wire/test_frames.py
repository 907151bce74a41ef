"""ttrpc, unary calls: golden bytes, the table of protocol errors, and two peers joined in memory."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import (
    MESSAGE_MAX,
    ClientConnection,
    Code,
    Data,
    End,
    OversizedMessage,
    Rejected,
    Request,
    Response,
    ServerConnection,
)
from nri_rdma.ttrpc.wire.error import ProtocolError

REQUEST, RESPONSE, DATA = 1, 2, 3
ODD = "StreamID must be odd for client initiated streams"
REUSED = "StreamID cannot be re-used and must increment"
INACTIVE = "StreamID is no longer active"

GOLDEN_REQUEST = bytes.fromhex(
    "0000004d 00000001 01 00"
    "0a1c6e72692e706b672e6170692e7631616c706861312e52756e74696d65 120e5265676973746572506c7567696e"
    "1a170a086e72692d72646d61120231301a0776302e31322e32 2080e497d012"
)
GOLDEN_PAYLOAD = bytes.fromhex("0a086e72692d72646d61120231301a0776302e31322e32")
GOLDEN_EMPTY_ANSWER = bytes.fromhex("00000000 00000001 02 00")
GOLDEN_ANSWER = bytes.fromhex("00000004 00000001 02 00 12021007")
GOLDEN_UNKNOWN_METHOD = bytes.fromhex(
    "00000021 00000003 02 00 0a1f080c121b6d6574686f6420506f7374557064617465506f6453616e64626f78"
)


def frame(stream_id: int, kind: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">IIBB", len(data), stream_id, kind, flags) + data


def request_frame(stream_id: int, payload: bytes = b"") -> bytes:
    return frame(stream_id, REQUEST, pb.Request(service="s", method="m", payload=payload).SerializeToString())


def response_frame(stream_id: int, payload: bytes = b"") -> bytes:
    return frame(stream_id, RESPONSE, pb.Response(payload=payload).SerializeToString())


def status_of(reply: bytes) -> tuple[int, int, str]:
    """Stream id, code and text of one whole answer, read independently of the client."""
    length, stream_id, kind, flags = struct.unpack_from(">IIBB", reply)
    assert (length, kind, flags) == (len(reply) - 10, RESPONSE, 0)
    message = pb.Response.FromString(reply[10:])
    assert not message.payload
    return stream_id, message.status.code, message.status.message


def served(server: ServerConnection, *chunks: bytes) -> list[Any]:
    events = []
    for chunk in chunks:
        server.receive_data(chunk)
        while (event := server.next_event()) is not None:
            events.append(event)
    return events


def answered(client: ClientConnection, *chunks: bytes) -> list[Any]:
    events = []
    for chunk in chunks:
        client.receive_data(chunk)
        while (event := client.next_event()) is not None:
            events.append(event)
    return events


def only_request(events: list[Request | Rejected]) -> Request:
    (event,) = events
    assert isinstance(event, Request)
    return event


def fields(event: Request | Rejected) -> tuple[Any, ...]:
    if isinstance(event, Rejected):
        return event.stream_id, event.reply
    return event.stream_id, event.service, event.method, event.payload, event.timeout_ns, event.metadata


class TestGoldenFrames:
    def test_request(self) -> None:
        call = ("nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin", GOLDEN_PAYLOAD)
        assert ClientConnection().request(*call, timeout_ns=5_000_000_000) == (1, GOLDEN_REQUEST)
        request = only_request(served(ServerConnection(), GOLDEN_REQUEST))
        assert fields(request) == (1, *call, 5_000_000_000, ())

    def test_empty_answer_is_an_answer(self) -> None:
        client = ClientConnection()
        client.request("s", "m", b"")
        assert answered(client, GOLDEN_EMPTY_ANSWER) == [Response(1, 0, "", b"")]

    def test_we_send_the_same_empty_answer(self) -> None:
        server = ServerConnection()
        served(server, GOLDEN_REQUEST)
        assert server.respond(1, b"") == GOLDEN_EMPTY_ANSWER

    def test_answer(self) -> None:
        server = ServerConnection()
        served(server, GOLDEN_REQUEST)
        assert server.respond(1, b"\x10\x07") == GOLDEN_ANSWER

    def test_unknown_method_on_stream_3(self) -> None:
        server = ServerConnection()
        served(server, request_frame(3))
        assert server.fail(3, Code.UNIMPLEMENTED, "method PostUpdatePodSandbox") == GOLDEN_UNKNOWN_METHOD


BROKEN = b"\x0a\xff"  # a string that is longer than the message

Row = tuple[str, list[bytes], list[tuple[int, int, str] | int]]
TABLE: list[Row] = [
    # what comes, and for each event: its status, or the stream id of a request
    ("even id", [frame(2, REQUEST)], [(2, 3, ODD)]),
    ("id 0", [frame(0, REQUEST)], [(0, 3, ODD)]),
    ("even id, type data", [frame(4, DATA, b"x")], [(4, 3, ODD)]),
    ("even id, unknown type", [frame(6, 0x7F)], [(6, 3, ODD)]),
    ("id used twice", [request_frame(1), request_frame(1)], [1, (1, 3, REUSED)]),
    ("id below the last", [request_frame(5), request_frame(3)], [5, (3, 3, REUSED)]),
    ("gaps are fine", [request_frame(1), request_frame(9)], [1, 9]),
    ("data on an unknown stream", [frame(1, DATA, b"x")], [(1, 3, INACTIVE)]),
    ("data on a unary stream", [request_frame(1), frame(1, DATA, b"x")], [1, (1, 3, INACTIVE)]),
    ("data without data", [frame(1, DATA, flags=5)], [(1, 3, INACTIVE)]),
    ("unknown type is ignored", [frame(1, 0x7F, b"abc"), request_frame(1)], [1]),
    ("type 0 is ignored", [frame(1, 0)], []),
    ("a response to a server is ignored", [frame(1, RESPONSE, b"")], []),
    ("flags of unary requests are ignored", [frame(1, REQUEST, b"", flags=3)], [1]),
    ("an empty request is a request", [frame(1, REQUEST)], [1]),
    (
        "oversize",
        [frame(1, REQUEST, bytes(MESSAGE_MAX + 1)), request_frame(1)],
        [(1, 8, "message length 4194305 exceed maximum message size of 4194304"), 1],
    ),
    (
        "oversize on an even id",
        [frame(2, DATA, bytes(MESSAGE_MAX + 1))],
        [(2, 8, "message length 4194305 exceed maximum message size of 4194304")],
    ),
]


@pytest.mark.parametrize(("chunks", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_protocol_errors_cost_one_stream(chunks: list[bytes], expected: list[tuple[int, int, str] | int]) -> None:
    server = ServerConnection()
    for pieces in (chunks, [b"".join(chunks)]):
        events = served(server := ServerConnection(), *pieces)
        found = [status_of(event.reply) if isinstance(event, Rejected) else event.stream_id for event in events]
        assert found == expected
    assert only_request(served(server, request_frame(99))).stream_id == 99  # the connection is as good as before


def test_broken_request_is_answered_and_its_id_is_used_up() -> None:
    events = served(ServerConnection(), frame(3, REQUEST, BROKEN), request_frame(3), request_frame(5))
    assert isinstance(events[0], Rejected) and isinstance(events[1], Rejected)
    stream_id, code, text = status_of(events[0].reply)
    assert (stream_id, code) == (3, 3) and text.startswith("unmarshal request error: ")
    assert status_of(events[1].reply) == (3, 3, REUSED)
    assert isinstance(events[2], Request)


def test_text_that_is_not_utf8_is_a_broken_request() -> None:
    (event,) = served(ServerConnection(), frame(1, REQUEST, b"\x0a\x01\xff"))
    assert isinstance(event, Rejected)


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


class TestServerConnection:
    def test_metadata_is_lower_cased_and_repeated_keys_are_kept(self) -> None:
        pairs = [("Traceparent", "00-a"), ("k", "1"), ("K", "2"), ("", "")]
        message = pb.Request(metadata=[pb.KeyValue(key=key, value=value) for key, value in pairs])
        request = only_request(served(ServerConnection(), frame(1, REQUEST, message.SerializeToString())))
        assert request.metadata == (("traceparent", "00-a"), ("k", "1"), ("k", "2"), ("", ""))

    def test_a_deadline_that_is_over_is_passed_on(self) -> None:
        message = pb.Request(timeout_nano=-5).SerializeToString()
        assert only_request(served(ServerConnection(), frame(1, REQUEST, message))).timeout_ns == -5

    def test_unknown_fields_are_ignored(self) -> None:
        assert only_request(served(ServerConnection(), frame(1, REQUEST, b"\xfa\x3f\x01x"))).method == ""

    def test_answers_leave_in_any_order(self) -> None:
        server = ServerConnection()
        served(server, request_frame(1), request_frame(3))
        assert server.respond(3, b"b") == response_frame(3, b"b")
        assert server.respond(1, b"a") == response_frame(1, b"a")

    def test_a_stream_is_answered_once(self) -> None:
        server = ServerConnection()
        served(server, request_frame(1))
        server.fail(1, Code.DEADLINE_EXCEEDED, "too late")
        with pytest.raises(ProtocolError, match="stream 1 is not open"):
            server.respond(1, b"")
        with pytest.raises(ProtocolError, match="stream 3 is not open"):
            server.fail(3, Code.UNKNOWN, "")

    def test_a_rejected_stream_is_not_open(self) -> None:
        server = ServerConnection()
        served(server, frame(2, REQUEST))
        with pytest.raises(ProtocolError):
            server.respond(2, b"")

    @pytest.mark.parametrize("size", [MESSAGE_MAX - 4, MESSAGE_MAX, 20 << 20])
    def test_an_answer_that_is_too_long_becomes_an_error(self, size: int) -> None:
        server = ServerConnection()
        served(server, request_frame(1))
        stream_id, code, text = status_of(server.respond(1, bytes(size)))
        assert (stream_id, code) == (1, 8) and text.startswith(f"message length {size} exceed")

    def test_the_longest_answer_is_sent(self) -> None:
        server = ServerConnection()
        served(server, request_frame(1))
        assert len(server.respond(1, bytes(MESSAGE_MAX - 5))) == 10 + MESSAGE_MAX

    @pytest.mark.parametrize("code", [0, -1, 1 << 40])
    def test_a_failure_never_leaves_as_ok(self, code: int) -> None:
        server = ServerConnection()
        served(server, request_frame(1))
        assert status_of(server.fail(1, code, "why")) == (1, 2, "why")

    def test_any_text_can_be_a_failure(self) -> None:
        server = ServerConnection()
        served(server, request_frame(1), request_frame(3))
        assert status_of(server.fail(1, Code.INTERNAL, "no \udcff file"))[2] == "no \\udcff file"
        assert len(server.fail(3, Code.INTERNAL, "x" * (5 << 20))) < 20_000

    @given(payload=st.binary(max_size=300) | st.integers(0, 40000).map(bytes), stream_id=st.integers(0, 50))
    def test_answers_are_what_protobuf_writes(self, payload: bytes, stream_id: int) -> None:
        stream_id = 2 * stream_id + 1
        server = ServerConnection()
        served(server, request_frame(stream_id))
        assert server.respond(stream_id, payload) == response_frame(stream_id, payload)

    @pytest.mark.parametrize("size", [0, 1, 127, 128, 16383, 16384, 1 << 21])
    def test_answers_are_what_protobuf_writes_at_the_edges(self, size: int) -> None:
        server = ServerConnection()
        served(server, request_frame(1))
        assert server.respond(1, bytes(size)) == response_frame(1, bytes(size))


class TestClientConnection:
    def test_ids_are_odd_and_increase(self) -> None:
        client = ClientConnection()
        assert [client.request("s", "m", b"")[0] for _ in range(4)] == [1, 3, 5, 7]

    def test_metadata_keys_leave_in_lower_case(self) -> None:
        _, message = ClientConnection().request("s", "m", b"", metadata=[("TraceParent", "A"), ("K", "1"), ("k", "2")])
        found = [(pair.key, pair.value) for pair in pb.Request.FromString(message[10:]).metadata]
        assert found == [("traceparent", "A"), ("k", "1"), ("k", "2")]

    def test_used_up_ids_are_an_error(self) -> None:
        client = ClientConnection()
        client._next_stream_id = 0xFFFFFFFF
        assert client.request("s", "m", b"")[0] == 0xFFFFFFFF
        with pytest.raises(ProtocolError, match="used up"):
            client.request("s", "m", b"")

    def test_oversize_says_the_numbers_and_uses_no_id(self) -> None:
        client = ClientConnection()
        with pytest.raises(OversizedMessage) as caught:
            client.request("s", "m", bytes(MESSAGE_MAX))
        assert (caught.value.length, caught.value.maximum) == (MESSAGE_MAX + 11, MESSAGE_MAX)
        assert client.request("s", "m", b"")[0] == 1

    @pytest.mark.parametrize("timeout_ns", [1 << 70, -(1 << 70), 0, 1])
    def test_any_timeout_can_be_sent(self, timeout_ns: int) -> None:
        _, message = ClientConnection().request("s", "m", b"", timeout_ns=timeout_ns)
        found = only_request(served(ServerConnection(), message)).timeout_ns
        assert (found > 0) == (timeout_ns > 0) and (found < 0) == (timeout_ns < 0)

    @pytest.mark.parametrize("broken", [{"service": "\udcff"}, {"method": "\udcff"}, {"metadata": [("k", "\udcff")]}])
    def test_text_that_is_not_unicode_is_a_wire_error(self, broken: dict[str, Any]) -> None:
        client = ClientConnection()
        with pytest.raises(ProtocolError, match="not Unicode"):
            client.request(**{"service": "s", "method": "m", "payload": b"", **broken})
        assert client.request("s", "m", b"")[0] == 1

    def test_absent_status_and_code_0_are_ok(self) -> None:
        client = ClientConnection()
        for _ in range(3):
            client.request("s", "m", b"")
        explicit = pb.Response(status=pb.Status(), payload=b"p").SerializeToString()
        data = response_frame(1, b"p") + frame(3, RESPONSE, explicit) + frame(5, RESPONSE)
        assert answered(client, data) == [Response(1, 0, "", b"p"), Response(3, 0, "", b"p"), Response(5, 0, "", b"")]

    def test_a_status_is_passed_on_whatever_its_number(self) -> None:
        client = ClientConnection()
        client.request("s", "m", b"")
        status = pb.Status(code=99, message="so", details=[pb.Any(type_url="t", value=b"v")])
        data = frame(1, RESPONSE, pb.Response(status=status).SerializeToString())
        assert answered(client, data) == [Response(1, 99, "so", b"")]

    def test_answers_nobody_waits_for_vanish(self) -> None:
        client = ClientConnection()
        for _ in range(2):
            client.request("s", "m", b"")
        client.forget(1)
        data = response_frame(1) + response_frame(9) + response_frame(2) + response_frame(3) + response_frame(3)
        assert answered(client, data) == [Response(3, 0, "", b"")]

    def test_what_cannot_be_an_answer_fails_its_own_call(self) -> None:
        client = ClientConnection()
        for _ in range(4):
            client.request("s", "m", b"")
        data = frame(1, DATA, b"x") + frame(3, RESPONSE, BROKEN) + frame(5, RESPONSE, bytes(MESSAGE_MAX + 1))
        found = answered(client, data + frame(7, 0x7F) + response_frame(7, b"ok"))
        assert [(one.stream_id, one.code) for one in found] == [(1, 13), (3, 13), (5, 8), (7, 0)]


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

    @given(data=st.data())
    def test_any_chunking(self, data: st.DataObject) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(self.STREAM)), max_size=12)))
        chunks = [self.STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(self.STREAM)], strict=True)]
        whole = [fields(event) for event in served(ServerConnection(), self.STREAM)]
        assert [fields(event) for event in served(ServerConnection(), *chunks)] == whole

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


def test_codes_are_those_of_grpc() -> None:
    assert len(Code) == 17
    assert (Code.OK, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.UNAUTHENTICATED) == (0, 4, 12, 16)
