"""Frames made and read by hand, and what either end of a connection is to make of them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
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

REQUEST, RESPONSE, DATA = 1, 2, 3


CLOSED, OPEN, NO_DATA = 1, 2, 4


ODD = "StreamID must be odd for client initiated streams"


REUSED = "StreamID cannot be re-used and must increment"


INACTIVE = "StreamID is no longer active"


STREAM_CLOSED = "data handling error: ttrpc: stream closed"


END_WITH_DATA = "data close message cannot include data"


UNEXPECTED = "protocol error: data where one answer was due"


BROKEN = b"\x0a\xff"  # a string that is longer than the message


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


def refuse(text: str, *calls: Callable[[], bytes]) -> None:
    """Every one of the calls raises that ProtocolError."""
    for call in calls:
        with pytest.raises(ProtocolError, match=text):
            call()
