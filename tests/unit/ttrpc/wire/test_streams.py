"""Streams at both ends: any chunking, and two peers that do whatever is legal."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.ttrpc.wire import (
    ClientConnection,
    Data,
    End,
    Rejected,
    Request,
    Response,
    ServerConnection,
)
from tests.unit.ttrpc.wire.framing import (
    AT_THE_CLIENT,
    AT_THE_SERVER,
    DATA,
    OPEN,
    TALK,
    ServerRow,
    events_of,
    frame,
    opened,
    request,
)

SERVER_RUN = (
    TALK + b"".join(data for _, data, _ in AT_THE_SERVER if len(data) < 100) + request(3, OPEN) + frame(3, DATA, b"q")
)


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
