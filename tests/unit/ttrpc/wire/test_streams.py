"""ttrpc, streams: every frame in every state at both ends, as Go has it, and two peers that do whatever is legal."""

from __future__ import annotations

import struct
from collections import deque
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
CLOSED, OPEN, NO_DATA = 1, 2, 4

INACTIVE = "StreamID is no longer active"
STREAM_CLOSED = "data handling error: ttrpc: stream closed"
END_WITH_DATA = "data close message cannot include data"
REUSED = "StreamID cannot be re-used and must increment"
UNEXPECTED = "protocol error: data where one answer was due"


def frame(stream_id: int, kind: int, data: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">IIBB", len(data), stream_id, kind, flags) + data


def request(stream_id: int, flags: int, payload: bytes = b"") -> bytes:
    return frame(stream_id, REQUEST, pb.Request(service="s", method="m", payload=payload).SerializeToString(), flags)


def response(stream_id: int, payload: bytes = b"", code: int = 0, text: str = "") -> bytes:
    message = pb.Response(payload=payload)
    if code:
        message.status.code, message.status.message = code, text
    return frame(stream_id, RESPONSE, message.SerializeToString())


def header(data: bytes) -> tuple[int, int, int, int]:
    """Length, stream id, type and flags of one whole frame, read independently of the product."""
    length, stream_id, kind, flags = struct.unpack_from(">IIBB", data)
    assert length == len(data) - 10
    return length, stream_id, kind, flags


def events_of(end: ServerConnection | ClientConnection, *chunks: bytes) -> list[Any]:
    """What the chunks make an end say: requests as ("Request", stream id), rejections with their status."""
    events: list[Any] = []
    for chunk in chunks:
        end.receive_data(chunk)
        while (event := end.next_event()) is not None:
            if isinstance(event, Request):
                events.append(("Request", event.stream_id))
            elif isinstance(event, Rejected):
                assert header(event.reply)[1:] == (event.stream_id, RESPONSE, 0)
                status = pb.Response.FromString(event.reply[10:]).status
                events.append(("Rejected", event.stream_id, status.code, status.message))
            else:
                events.append(event)
    return events


def refused(text: str, stream_id: int = 1, code: int = 3) -> tuple[str, int, int, str]:
    return "Rejected", stream_id, code, text


OVERSIZE = "message length 4194305 exceed maximum message size of 4194304"
TALK, FOR_MESSAGES, UNARY = request(1, OPEN), request(1, CLOSED), request(1, 0)

ServerRow = tuple[str, bytes, list[Any]]
AT_THE_SERVER: list[ServerRow] = [
    ("messages, then the end", frame(1, DATA, b"a") + frame(1, DATA, b"b") + frame(1, DATA, b"", CLOSED | NO_DATA),
     [Data(1, b"a"), Data(1, b"b"), End(1)]),
    ("an empty payload is a message", frame(1, DATA), [Data(1, b"")]),
    ("no data and no end is nothing", frame(1, DATA, b"", NO_DATA), []),
    ("no data, whatever it holds", frame(1, DATA, b"junk", NO_DATA), []),
    ("an end that holds an empty message", frame(1, DATA, b"", CLOSED), [Data(1, b""), End(1)]),
    ("an end that holds a message", frame(1, DATA, b"x", CLOSED), [Data(1, b"x"), refused(END_WITH_DATA)]),
    ("an end with no data that holds some", frame(1, DATA, b"x", CLOSED | NO_DATA), [refused(END_WITH_DATA)]),
    ("the end twice is the end", frame(1, DATA, b"", CLOSED | NO_DATA) * 2, [End(1)]),
    ("nothing after the end is nothing", frame(1, DATA, b"", CLOSED | NO_DATA) + frame(1, DATA, b"", NO_DATA),
     [End(1)]),
    ("a message after the end", frame(1, DATA, b"", CLOSED | NO_DATA) + frame(1, DATA, b"x"),
     [End(1), refused(STREAM_CLOSED)]),
    ("messages after the stream was refused", frame(1, DATA, b"x", CLOSED) + frame(1, DATA, b"y"),
     [Data(1, b"x"), refused(END_WITH_DATA), refused(INACTIVE)]),
    ("a message that is too long", frame(1, DATA, bytes(MESSAGE_MAX + 1)) + frame(1, DATA, b"y"),
     [refused(OVERSIZE, code=8), refused(INACTIVE)]),
    ("the longest message", frame(1, DATA, bytes(MESSAGE_MAX)), [Data(1, bytes(MESSAGE_MAX))]),
    ("a second request with its id", request(1, OPEN) + frame(1, DATA, b"y"), [refused(REUSED), refused(INACTIVE)]),
    ("a response from a client", frame(1, RESPONSE) + frame(1, DATA, b"y"), [Data(1, b"y")]),
    ("an unknown type", frame(1, 0x7F, b"x") + frame(1, DATA, b"y"), [Data(1, b"y")]),
    ("an unknown flag", frame(1, DATA, b"x", 0x80), [Data(1, b"x")]),
    ("another stream", frame(3, DATA, b"x") + frame(1, DATA, b"y"), [refused(INACTIVE, 3), Data(1, b"y")]),
]  # fmt: skip


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


@pytest.mark.parametrize(
    ("flags", "is_unary", "is_followed"),
    [(0, True, False), (CLOSED, False, False), (OPEN, False, True), (OPEN | CLOSED, False, False), (0x80, True, False)],
)
def test_a_request_says_what_will_follow(flags: int, is_unary: bool, is_followed: bool) -> None:
    server = ServerConnection()
    server.receive_data(request(1, flags))
    event = server.next_event()
    assert isinstance(event, Request)
    assert (event.is_unary, event.is_followed) == (is_unary, is_followed)


def refuse(text: str, *calls: Callable[[], bytes]) -> None:
    """Every one of the calls raises that ProtocolError."""
    for call in calls:
        with pytest.raises(ProtocolError, match=text):
            call()


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


def opened(client_streams: bool, server_streams: bool) -> ClientConnection:
    client = ClientConnection()
    stream_id, _ = client.open_stream("s", "m", client_streams=client_streams, server_streams=server_streams)
    assert stream_id == 1
    return client


END = frame(1, DATA, b"", CLOSED | NO_DATA)

AT_THE_CLIENT: list[ServerRow] = [
    ("messages, then the end", frame(1, DATA, b"a") + frame(1, DATA) + END, [Data(1, b"a"), Data(1, b""), End(1)]),
    ("a last message that is the end", frame(1, DATA, b"x", CLOSED), [Data(1, b"x"), End(1)]),
    ("an empty last message", frame(1, DATA, b"", CLOSED), [Data(1, b""), End(1)]),
    ("no data and no end is nothing", frame(1, DATA, b"", NO_DATA), []),
    ("an answer after messages", frame(1, DATA, b"a") + response(1, b"z"), [Data(1, b"a"), Response(1, 0, "", b"z")]),
    ("an error after messages", frame(1, DATA, b"a") + response(1, b"", 7, "no"),
     [Data(1, b"a"), Response(1, 7, "no", b"")]),
    ("nothing counts after the end", END + frame(1, DATA, b"x") + END + response(1), [End(1)]),
    ("nothing counts after the answer", response(1) + frame(1, DATA, b"x") + END, [Response(1, 0, "", b"")]),
    ("a message that is too long", frame(1, DATA, bytes(MESSAGE_MAX + 1)) + frame(1, DATA),
     [Response(1, 8, OVERSIZE, b"")]),
    ("a request from the server", frame(1, REQUEST),
     [Response(1, 13, "protocol error: a request from the server", b"")]),
    ("an unknown type", frame(1, 0x7F, b"x") + END, [End(1)]),
    ("another stream", frame(3, DATA, b"x") + END, [End(1)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"), [row[1:] for row in AT_THE_CLIENT], ids=[row[0] for row in AT_THE_CLIENT]
)
@pytest.mark.parametrize("client_streams", [True, False])
def test_a_client_that_takes_messages(client_streams: bool, data: bytes, expected: list[Any]) -> None:
    client = opened(client_streams, server_streams=True)
    assert events_of(client, data) == expected
    is_over = any(isinstance(event, End | Response) for event in expected)
    assert client.open_streams == (0 if is_over else 1)


@pytest.mark.parametrize("client_streams", [True, False])
@pytest.mark.parametrize("data", [frame(1, DATA, b"x"), frame(1, DATA), END, frame(1, DATA, b"", NO_DATA)])
def test_a_client_that_takes_one_answer(client_streams: bool, data: bytes) -> None:
    client = opened(client_streams, server_streams=False)
    assert events_of(client, data + response(1)) == [Response(1, 13, UNEXPECTED, b"")]
    assert events_of(opened(client_streams, server_streams=False), response(1, b"x")) == [Response(1, 0, "", b"x")]


class TestWhatAClientSends:
    @pytest.mark.parametrize(
        ("client_streams", "server_streams", "flags"),
        [(False, False, 0), (False, True, CLOSED), (True, False, OPEN), (True, True, OPEN)],
    )
    def test_the_request_says_whether_messages_follow(
        self, client_streams: bool, server_streams: bool, flags: int
    ) -> None:
        client = ClientConnection()
        stream_id, data = client.open_stream(
            "s", "m", b"p", client_streams=client_streams, server_streams=server_streams, timeout_ns=7,
            metadata=[("K", "v")],
        )  # fmt: skip
        assert header(data)[1:] == (stream_id, REQUEST, flags)
        message = pb.Request.FromString(data[10:])
        assert (message.service, message.method, message.payload, message.timeout_nano) == ("s", "m", b"p", 7)
        assert [(pair.key, pair.value) for pair in message.metadata] == [("k", "v")]

    @pytest.mark.parametrize("server_streams", [True, False])
    def test_messages_and_the_end(self, server_streams: bool) -> None:
        client = opened(True, server_streams)
        assert client.send_data(1, b"abc") == frame(1, DATA, b"abc")
        assert client.send_data(1, b"") == frame(1, DATA)
        assert client.close_send(1) == END
        refuse("stream 1 takes no messages", lambda: client.send_data(1, b"x"), lambda: client.close_send(1))
        assert events_of(client, response(1, b"z")) == [Response(1, 0, "", b"z")]

    @pytest.mark.parametrize("server_streams", [True, False])
    def test_no_messages_on_a_stream_opened_for_none(self, server_streams: bool) -> None:
        client = opened(False, server_streams)
        refuse("stream 1 takes no messages", lambda: client.send_data(1, b"x"), lambda: client.close_send(1))

    def test_nothing_after_the_server_s_end(self) -> None:
        client = opened(True, True)
        assert events_of(client, END) == [End(1)]
        with pytest.raises(ProtocolError):
            client.send_data(1, b"x")

    def test_a_message_that_is_too_long_changes_nothing(self) -> None:
        client = opened(True, True)
        with pytest.raises(OversizedMessage):
            client.send_data(1, bytes(MESSAGE_MAX + 1))
        assert client.send_data(1, b"x") == frame(1, DATA, b"x")

    def test_what_comes_to_a_stream_that_was_given_up_vanishes(self) -> None:
        client = opened(True, True)
        client.forget(1)
        client.forget(1)
        assert client.open_streams == 0
        assert events_of(client, frame(1, DATA, b"x") + END + response(1)) == []


SERVER_RUN = (
    TALK + b"".join(data for _, data, _ in AT_THE_SERVER if len(data) < 100) + request(3, OPEN) + frame(3, DATA, b"q")
)
CLIENT_RUN = b"".join(data for _, data, _ in AT_THE_CLIENT if len(data) < 100)


class TestChunking:
    def test_at_the_server(self) -> None:
        whole = events_of(ServerConnection(), SERVER_RUN)
        assert len(whole) > 10
        assert events_of(ServerConnection(), *(bytes([byte]) for byte in SERVER_RUN)) == whole
        for cut in range(len(SERVER_RUN) + 1):
            assert events_of(ServerConnection(), SERVER_RUN[:cut], SERVER_RUN[cut:]) == whole, cut

    @pytest.mark.parametrize("row", AT_THE_CLIENT, ids=[row[0] for row in AT_THE_CLIENT])
    def test_at_the_client(self, row: ServerRow) -> None:
        _, data, expected = row
        if len(data) > 200:
            data = data[:10] + data[-30:]  # an oversized frame that never ends: nothing comes of it, in any pieces
            expected = []
        assert events_of(opened(True, True), *(bytes([byte]) for byte in data)) == expected
        for cut in range(len(data) + 1):
            assert events_of(opened(True, True), data[:cut], data[cut:]) == expected, cut

    @given(data=st.data())
    def test_any_chunking(self, data: st.DataObject) -> None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(SERVER_RUN)), max_size=12)))
        chunks = [SERVER_RUN[a:b] for a, b in zip([0, *cuts], [*cuts, len(SERVER_RUN)], strict=True)]
        assert events_of(ServerConnection(), *chunks) == events_of(ServerConnection(), SERVER_RUN)


class Pair:
    """A client and a server joined by two pipes that deliver when told to. Keeps what each end said and heard."""

    def __init__(self) -> None:
        self.client, self.server = ClientConnection(), ServerConnection()
        self.to_server, self.to_client = deque[bytes](), deque[bytes]()
        self.kinds: dict[int, tuple[bool, bool]] = {}
        self.sent: dict[tuple[str, int], list[bytes]] = {}
        self.heard: dict[tuple[str, int], list[bytes]] = {}
        self.outcome: dict[int, object] = {}  # what the client saw at the end
        self.closed: set[tuple[str, int]] = set()  # ends of messages that were sent, by sender
        self.answered: dict[int, object] = {}  # how the server ended it
        self.given_up: set[int] = set()

    def open(self, client_streams: bool, server_streams: bool) -> None:
        stream_id, data = self.client.open_stream(
            "s", "m", client_streams=client_streams, server_streams=server_streams
        )
        self.kinds[stream_id] = client_streams, server_streams
        self.to_server.append(data)

    def deliver(self, to: str, pieces: int) -> None:
        """Bring what is under way to one end, cut into that many pieces."""
        pipe, end = (self.to_server, self.server) if to == "server" else (self.to_client, self.client)
        data = b"".join(pipe)
        pipe.clear()
        size = max(1, len(data) // pieces)
        for start in range(0, len(data), size):
            end.receive_data(data[start : start + size])
            while (event := end.next_event()) is not None:
                self._note(to, event)

    def _note(self, to: str, event: Request | Data | End | Rejected | Response) -> None:
        match event:
            case Data():
                self.heard.setdefault((to, event.stream_id), []).append(event.payload)
            case Rejected():  # legal peers are refused only messages that crossed the server's end
                assert to == "server" and event.stream_id in self.answered
                self.to_client.append(event.reply)
            case Response() | End() if to == "client":
                assert event.stream_id not in self.outcome and event.stream_id not in self.given_up
                self.outcome[event.stream_id] = event

    def act(self, draw: Any) -> None:
        """One legal operation of either end, if the one drawn is legal."""
        operation = draw(st.sampled_from(["open", "client data", "client end", "server data", "server end", "respond",
                                          "fail", "give up", "to server", "to client"]))  # fmt: skip
        if operation == "open":
            self.open(draw(st.booleans()), draw(st.booleans()))
        elif operation in ("to server", "to client"):
            self.deliver(operation[3:], draw(st.integers(1, 30)))
        elif self.kinds:
            self._act_on(draw(st.sampled_from(sorted(self.kinds))), operation, draw(st.binary(max_size=9)))

    def _act_on(self, stream_id: int, operation: str, payload: bytes) -> None:
        client_streams, server_streams = self.kinds[stream_id]
        client_open = stream_id in self.client._states
        server_open = stream_id in self.server._states
        may_send = client_open and client_streams and ("client", stream_id) not in self.closed
        match operation:
            case "client data" if may_send:
                self.to_server.append(self.client.send_data(stream_id, payload))
                self.sent.setdefault(("server", stream_id), []).append(payload)
            case "client end" if may_send:
                self.to_server.append(self.client.close_send(stream_id))
                self.closed.add(("client", stream_id))
            case "server data" if server_open and server_streams:
                self.to_client.append(self.server.send_data(stream_id, payload))
                self.sent.setdefault(("client", stream_id), []).append(payload)
            case "server end" if server_open and server_streams:
                self.to_client.append(self.server.close_send(stream_id))
                self.answered[stream_id] = End(stream_id)
            case "respond" if server_open:
                self.to_client.append(self.server.respond(stream_id, payload))
                self.answered[stream_id] = Response(stream_id, 0, "", payload)
            case "fail" if server_open:
                self.to_client.append(self.server.fail(stream_id, 9, "why"))
                self.answered[stream_id] = Response(stream_id, 9, "why", b"")
            case "give up" if client_open:
                self.client.forget(stream_id)
                self.given_up.add(stream_id)


@given(data=st.data())
def test_two_peers_that_keep_to_the_tables_understand_each_other(data: st.DataObject) -> None:
    pair = Pair()
    for _ in range(data.draw(st.integers(0, 60))):
        pair.act(data.draw)
    for _ in range(2):  # refusals go back once more
        pair.deliver("server", 1)
        pair.deliver("client", 1)
    for (end, stream_id), heard in pair.heard.items():
        sent = pair.sent[end, stream_id]
        assert heard == sent[: len(heard)], "messages arrive whole and in order"
        if stream_id not in pair.given_up and stream_id not in pair.answered:
            assert heard == sent, "and all of them while the stream is open"
    expected = {stream_id: how for stream_id, how in pair.answered.items() if stream_id not in pair.given_up}
    # Who gave up after the end had come has both.
    assert {k: v for k, v in pair.outcome.items() if k not in pair.given_up} == expected
    assert pair.server.open_streams == len(pair.kinds) - len(pair.answered)
