"""The contents of frames: golden bytes, codes, and large messages, which mean what protobuf says they mean."""

from __future__ import annotations

import random

import pytest

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import (
    MESSAGE_MAX,
    ClientConnection,
    Code,
    OversizedMessage,
    Request,
    Response,
    ServerConnection,
)
from tests.unit.ttrpc.wire.framing import (
    answered,
    fields,
    frame,
    only_request,
    request_frame,
    served,
)

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


def test_codes_are_those_of_grpc() -> None:
    assert len(Code) == 17
    assert (Code.OK, Code.DEADLINE_EXCEEDED, Code.UNIMPLEMENTED, Code.UNAUTHENTICATED) == (0, 4, 12, 16)


BIG = 20_000


STATUS = pb.Response(status=pb.Status(code=5, message="why")).SerializeToString()


PAYLOAD = pb.Response(payload=b"p" * BIG).SerializeToString()


SMALL = pb.Response(payload=b"small").SerializeToString()


UNKNOWN = b"\x78\x01"


@pytest.mark.parametrize(
    "data",
    [
        PAYLOAD,
        PAYLOAD + STATUS,
        STATUS + PAYLOAD,
        PAYLOAD + SMALL,
        SMALL + PAYLOAD,
        PAYLOAD + PAYLOAD,
        PAYLOAD + UNKNOWN,
        UNKNOWN + PAYLOAD,
        b"\x12\xa0\x9c\x81\x00" + b"p" * BIG,  # the length in more bytes than it needs
    ],
)
def test_a_large_answer_is_read_as_protobuf_reads_it(data: bytes) -> None:
    client = ClientConnection()
    stream_id, _request = client.request("s", "m", b"")
    client.receive_data(frame(stream_id, 2, data))
    message = pb.Response.FromString(data)
    expected = Response(stream_id, message.status.code, message.status.message, message.payload)
    assert client.next_event() == expected


@pytest.mark.parametrize("data", [PAYLOAD[:-1], b"\x12" + b"\xff" * BIG, b"\x12" + b"\x80" * BIG])
def test_a_large_answer_that_is_none_fails_its_call(data: bytes) -> None:
    client = ClientConnection()
    stream_id, _request = client.request("s", "m", b"")
    client.receive_data(frame(stream_id, 2, data))
    event = client.next_event()
    assert isinstance(event, Response)
    assert (event.code, event.message.partition(":")[0]) == (13, "unmarshal response error")


@pytest.mark.parametrize("size", [(1 << 14) - 1, 1 << 14, BIG, (1 << 21) - 1, 1 << 21, 4_000_000])
def test_a_large_request_holds_what_was_asked(size: int) -> None:
    payload = random.Random(size).randbytes(size)
    client, server = ClientConnection(), ServerConnection()
    _stream_id, data = client.request("s", "m", payload, timeout_ns=7, metadata=[("K", "1"), ("k", "2")])
    server.receive_data(data)
    event = server.next_event()
    assert isinstance(event, Request)
    assert (event.service, event.method, event.timeout_ns) == ("s", "m", 7)
    assert event.metadata == (("k", "1"), ("k", "2"))
    assert event.payload == payload
    client.receive_data(server.respond(event.stream_id, payload))
    assert client.next_event() == Response(1, 0, "", payload)


def test_the_longest_request_just_fits() -> None:
    overhead = len(b"\x0a\x01s\x12\x01m" + b"\x1a\xf5\xff\xff\x01")
    client = ClientConnection()
    _stream_id, data = client.request("s", "m", bytes(MESSAGE_MAX - overhead))
    assert len(data) == 10 + MESSAGE_MAX
    with pytest.raises(OversizedMessage) as caught:
        client.request("s", "m", bytes(MESSAGE_MAX - overhead + 1))
    assert caught.value.length == MESSAGE_MAX + 1
