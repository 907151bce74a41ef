"""Netlink messages: what is written is read again, and a broken one is refused."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import (
    ACK,
    DONE,
    ERROR,
    NESTED,
    REQUEST,
    Answer,
    Message,
    encode_attribute,
    encode_request,
    encode_u32,
    read_answer,
    read_attributes,
    read_messages,
)

ATTRIBUTES = st.lists(st.tuples(st.integers(0, 0x3FFF), st.binary(max_size=40)), max_size=6)
REQUESTS = st.lists(st.tuples(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF), ATTRIBUTES), max_size=5)


@given(REQUESTS)
def test_requests_of_one_datagram_are_read_again(requests: list[tuple[int, int, list[tuple[int, bytes]]]]) -> None:
    datagram = b"".join(
        encode_request(kind, flags, number, b"".join(encode_attribute(*item) for item in attributes))
        for number, (kind, flags, attributes) in enumerate(requests)
    )
    found = list(read_messages(datagram))
    assert [(it.kind, it.flags, it.sequence) for it in found] == [
        (kind, flags | REQUEST, number) for number, (kind, flags, _) in enumerate(requests)
    ]
    assert [list(read_attributes(it.whole[16:])) for it in found] == [attributes for *_, attributes in requests]


def test_a_nested_attribute_is_known_by_its_number_alone() -> None:
    inner = encode_u32(7, 0x01020304)
    assert list(read_attributes(encode_attribute(18 | NESTED, inner))) == [(18, inner)]
    assert list(read_attributes(inner)) == [(7, struct.pack("=I", 0x01020304))]


@given(st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for reader in (read_messages, read_attributes):
        with contextlib.suppress(WireError):
            list(reader(data))
    for kind in (DONE, ERROR):
        with contextlib.suppress(WireError):
            read_answer(Message(kind, 0x200, 1, data))


@pytest.mark.parametrize("length", [0, 15, 17, 2000])
def test_a_message_of_a_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        list(read_messages(struct.pack("=IHHII", length, 16, 0, 1, 0)))


@pytest.mark.parametrize("length", [0, 3, 9])
def test_an_attribute_of_a_length_that_cannot_be_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        list(read_attributes(struct.pack("=HHI", length, 1, 0)))


def _refusal(code: int, flags: int, after: bytes) -> Message:
    request = encode_request(19, ACK, 7, bytes(12))
    repeated = request if not flags & 0x100 and code else request[:16]
    body = struct.pack("=i", code) + repeated + after
    return next(read_messages(struct.pack("=IHHII", 16 + len(body), ERROR, flags, 7, 0) + body))


REASON = encode_attribute(1, b"mtu less than device minimum\0") + encode_u32(2, 24)


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (_refusal(0, 0x100, b""), Answer(0, "")),
        (_refusal(-22, 0x100, b""), Answer(22, "")),
        (_refusal(-22, 0x300, REASON), Answer(22, "mtu less than device minimum")),
        (_refusal(-22, 0x200, REASON), Answer(22, "mtu less than device minimum")),
        (_refusal(0, 0x200, REASON), Answer(0, "mtu less than device minimum")),
        (Message(DONE, 0x2, 1, struct.pack("=IHHIIi", 20, DONE, 2, 1, 0, 0)), Answer(0, "")),
        (Message(DONE, 0x2, 1, struct.pack("=IHHIIi", 20, DONE, 2, 1, 0, -105)), Answer(105, "")),
        (Message(DONE, 0x2, 1, struct.pack("=IHHII", 16, DONE, 2, 1, 0)), Answer(0, "")),
    ],
)
def test_how_a_request_ended_is_read_with_the_kernels_words(message: Message, answer: Answer) -> None:
    assert read_answer(message) == answer
