"""The calling end of a connection: every frame in every state, and its requests."""

from __future__ import annotations

from typing import Any

import pytest

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import (
    MESSAGE_MAX,
    ClientConnection,
    End,
    OversizedMessage,
    Response,
    ServerConnection,
)
from nri_rdma.ttrpc.wire.error import ProtocolError
from tests.unit.ttrpc.wire.framing import (
    AT_THE_CLIENT,
    BROKEN,
    CLOSED,
    DATA,
    END,
    NO_DATA,
    OPEN,
    REQUEST,
    RESPONSE,
    UNEXPECTED,
    answered,
    events_of,
    frame,
    header,
    only_request,
    opened,
    refuse,
    response,
    response_frame,
    served,
)


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
