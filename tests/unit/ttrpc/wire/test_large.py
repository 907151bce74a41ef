"""Large messages take ways of their own past protobuf's copies: they mean what protobuf says they mean."""

from __future__ import annotations

import random
import struct

import pytest

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from nri_rdma.ttrpc.wire import MESSAGE_MAX, ClientConnection, OversizedMessage, Request, Response, ServerConnection

BIG = 20_000
STATUS = pb.Response(status=pb.Status(code=5, message="why")).SerializeToString()
PAYLOAD = pb.Response(payload=b"p" * BIG).SerializeToString()
SMALL = pb.Response(payload=b"small").SerializeToString()
UNKNOWN = b"\x78\x01"


def frame(stream_id: int, kind: int, data: bytes) -> bytes:
    return struct.pack(">IIBB", len(data), stream_id, kind, 0) + data


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
