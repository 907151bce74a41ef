"""The answering end of a connection: the table of protocol errors, every frame in every state, and its answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import (
    MESSAGE_MAX,
    Code,
    Data,
    OversizedMessage,
    Rejected,
    Request,
    ServerConnection,
)
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.wire.framing import (
    AT_THE_SERVER,
    BROKEN,
    CLOSED,
    DATA,
    FOR_MESSAGES,
    INACTIVE,
    NO_DATA,
    ODD,
    OPEN,
    REQUEST,
    RESPONSE,
    REUSED,
    STREAM_CLOSED,
    TALK,
    UNARY,
    events_of,
    frame,
    header,
    only_request,
    refuse,
    refused,
    request,
    request_frame,
    response,
    response_frame,
    served,
    status_of,
)

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


@pytest.mark.parametrize(
    ("data", "expected"), [row[1:] for row in AT_THE_SERVER], ids=[row[0] for row in AT_THE_SERVER]
)
def test_a_server_that_takes_messages(data: bytes, expected: list[Any]) -> None:
    server = ServerConnection()
    assert events_of(server, TALK, data) == [("Request", 1), *expected]
    assert events_of(ServerConnection(), TALK + data) == [("Request", 1), *expected]
    is_over = any(event[0] == "Rejected" and event[1] == 1 for event in expected)
    assert server.open_streams == (0 if is_over else 1)
    assert events_of(server, request(99, 0)) == [("Request", 99)]  # the connection is as good as before


@pytest.mark.parametrize(
    ("opening", "data", "expected"),
    [
        (FOR_MESSAGES, frame(1, DATA, b"x"), [refused(STREAM_CLOSED)]),
        (FOR_MESSAGES, frame(1, DATA, b"", CLOSED | NO_DATA), []),
        (UNARY, frame(1, DATA, b"x"), [refused(INACTIVE)]),
        (UNARY, frame(1, DATA, b"", CLOSED | NO_DATA), [refused(INACTIVE)]),
        (request(1, OPEN | CLOSED), frame(1, DATA, b"x"), [refused(STREAM_CLOSED)]),
        (request(1, 0xF0), frame(1, DATA, b"x"), [refused(INACTIVE)]),
    ],
)
def test_a_server_that_takes_none(opening: bytes, data: bytes, expected: list[Any]) -> None:
    assert events_of(ServerConnection(), opening, data) == [("Request", 1), *expected]


class TestWhatAServerSends:
    @pytest.mark.parametrize("opening", [TALK, FOR_MESSAGES])
    def test_messages_and_the_end(self, opening: bytes) -> None:
        server = ServerConnection()
        events_of(server, opening)
        assert server.send_data(1, b"abc") == frame(1, DATA, b"abc")
        assert server.send_data(1, b"") == frame(1, DATA)
        assert server.close_send(1) == frame(1, DATA, b"", CLOSED | NO_DATA)
        assert server.open_streams == 0

    @pytest.mark.parametrize("opening", [TALK, FOR_MESSAGES, UNARY])
    def test_one_answer_or_one_error(self, opening: bytes) -> None:
        for server in (ServerConnection(), ServerConnection()):
            events_of(server, opening)
            if server.open_streams:
                assert server.respond(1, b"x") == response(1, b"x")
        events_of(server := ServerConnection(), opening)
        assert server.fail(1, Code.ABORTED, "so") == response(1, b"", 10, "so")
        assert server.open_streams == 0

    def test_no_message_on_a_unary_stream(self) -> None:
        server = ServerConnection()
        events_of(server, UNARY)
        refuse("stream 1", lambda: server.send_data(1, b"x"), lambda: server.close_send(1))
        assert server.respond(1, b"") == response(1)

    @pytest.mark.parametrize("last", ["respond", "fail", "close_send", "broken by the peer"])
    def test_nothing_after_the_end(self, last: str) -> None:
        server = ServerConnection()
        events_of(server, TALK)
        match last:
            case "respond":
                server.respond(1, b"")
            case "fail":
                server.fail(1, Code.INTERNAL, "")
            case "close_send":
                server.close_send(1)
            case _:
                events_of(server, frame(1, DATA, b"x", CLOSED))
        refuse(
            "stream 1 is not open",
            lambda: server.send_data(1, b"x"),
            lambda: server.close_send(1),
            lambda: server.respond(1, b""),
            lambda: server.fail(1, Code.INTERNAL, ""),
        )
        assert events_of(server, frame(1, DATA, b"late")) == [refused(INACTIVE)]

    def test_a_message_that_is_too_long_changes_nothing(self) -> None:
        server = ServerConnection()
        events_of(server, TALK)
        with pytest.raises(OversizedMessage) as caught:
            server.send_data(1, bytes(MESSAGE_MAX + 1))
        assert (caught.value.length, caught.value.maximum) == (MESSAGE_MAX + 1, MESSAGE_MAX)
        assert header(server.send_data(1, bytes(MESSAGE_MAX)))[0] == MESSAGE_MAX
        server.close_send(1)

    def test_an_answer_between_a_message_and_its_own_end_is_the_end(self) -> None:
        server = ServerConnection()
        events_of(server, TALK)
        server.receive_data(frame(1, DATA, b"", CLOSED))
        assert server.next_event() == Data(1, b"")
        server.respond(1, b"")
        assert server.next_event() is None
