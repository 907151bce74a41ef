"""The NRI multiplexer: any framing in, the one framing that Go survives out."""

from __future__ import annotations

import struct
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nri_rdma.ttrpc.wire import ClientConnection, ServerConnection
from nri_rdma.wire import WireError
from nri_rdma.wire.mux import (
    FIRST_FRAME_MAX,
    HOSTILE_LENGTH,
    MAX_PAYLOAD,
    PLUGIN_SERVICE_CONN,
    RUNTIME_SERVICE_CONN,
    MuxDecoder,
    encode_message,
)

Frames = list[tuple[int, bytes]]


def frame(conn_id: int, payload: bytes) -> bytes:
    return struct.pack(">II", conn_id, len(payload)) + payload


def layout(trunk: bytes) -> list[tuple[int, int]]:
    """Conn id and length of every frame, read independently of the decoder."""
    found, position = [], 0
    while position < len(trunk):
        conn_id, length = struct.unpack_from(">II", trunk, position)
        found.append((conn_id, length))
        position += 8 + length
    assert position == len(trunk)
    return found


def runs(pieces: Frames) -> Frames:
    """Pieces with neighbours of one conn joined: what is left when chunking is forgotten."""
    return [(conn_id, b"".join(piece for _, piece in run)) for conn_id, run in groupby(pieces, lambda pair: pair[0])]


def decode(chunks: list[bytes]) -> Frames:
    decoder = MuxDecoder()
    return runs([piece for chunk in chunks for piece in decoder.receive_data(chunk)])


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        (10, [10]),
        (4095, [4095]),
        (4096, [4096]),
        (4097, [4096, 1]),
        (8192, [4096, 4096]),
        (65536 + 10, [4096, 61450]),
        (MAX_PAYLOAD, [4096, MAX_PAYLOAD - 4096]),
        (MAX_PAYLOAD + 4096, [4096, MAX_PAYLOAD]),
        (MAX_PAYLOAD + 4097, [4096, MAX_PAYLOAD, 1]),
    ],
)
def test_a_message_is_4096_bytes_and_then_the_rest(size: int, lengths: list[int]) -> None:
    message = bytes(size)
    trunk = encode_message(RUNTIME_SERVICE_CONN, message)
    assert layout(trunk) == [(2, length) for length in lengths]
    assert decode([trunk]) == [(2, message)]


@pytest.mark.parametrize("ttrpc_payload", [4086, 4087, 4096, 8182, 65536, 4194304])
def test_no_first_frame_is_longer_than_a_go_reader_survives(ttrpc_payload: int) -> None:
    frames = layout(encode_message(PLUGIN_SERVICE_CONN, bytes(10 + ttrpc_payload)))
    assert frames[0][1] == min(10 + ttrpc_payload, FIRST_FRAME_MAX)
    assert len(frames) <= 2


@pytest.mark.parametrize("conn_id", [0, 3, -1, 1 << 32])
def test_writing_to_a_conn_that_does_not_exist_is_refused(conn_id: int) -> None:
    with pytest.raises(WireError, match="does not exist"):
        encode_message(conn_id, b"x")


def test_frames_are_split_at_every_offset_of_the_trunk() -> None:
    trunk = frame(1, b"abc") + frame(2, b"defg") + frame(1, b"h")
    for cut in range(len(trunk) + 1):
        assert decode([trunk[:cut], trunk[cut:]]) == [(1, b"abc"), (2, b"defg"), (1, b"h")], cut


def test_frames_come_byte_by_byte() -> None:
    trunk = frame(1, b"abc") + frame(2, b"defg")
    assert decode([trunk[i : i + 1] for i in range(len(trunk))]) == [(1, b"abc"), (2, b"defg")]


def test_a_message_in_one_byte_frames_is_whole() -> None:
    assert decode([b"".join(frame(1, bytes([n])) for n in range(100))]) == [(1, bytes(range(100)))]


def test_trailing_bytes_wait_for_their_frame() -> None:
    decoder = MuxDecoder()
    assert decoder.receive_data(frame(1, b"abc") + b"\0\0\0") == [(1, b"abc")]
    assert decoder.receive_data(b"\2\0\0\0\1z") == [(2, b"z")]


@pytest.mark.parametrize("conn_id", [0, 3, 0xFFFFFFFF])
def test_frames_of_unknown_conns_vanish(conn_id: int) -> None:
    trunk = frame(conn_id, b"abc") + frame(1, b"x") + frame(conn_id, b"") + frame(2, b"y")
    assert decode([trunk]) == [(1, b"x"), (2, b"y")]
    assert MuxDecoder().receive_data(frame(conn_id, b"abc")) == []


def test_empty_frames_vanish() -> None:
    assert decode([frame(1, b"")]) == []
    assert decode([frame(1, b"") + frame(2, b"") + frame(1, b"x")]) == [(1, b"x")]


@pytest.mark.parametrize("conn_id", [0, 1, 2, 7])
@pytest.mark.parametrize("length", [HOSTILE_LENGTH + 1, 0xFFFFFFFF])
def test_a_hostile_length_is_an_error_for_ever(conn_id: int, length: int) -> None:
    decoder = MuxDecoder()
    for data in (struct.pack(">II", conn_id, length), b"", frame(1, b"x")):
        with pytest.raises(WireError, match=f"claims {length} bytes"):
            decoder.receive_data(data)


def test_a_hostile_frame_that_is_really_there_is_an_error_too() -> None:
    with pytest.raises(WireError):
        MuxDecoder().receive_data(frame(1, bytes(HOSTILE_LENGTH + 1)))
    assert decode([frame(1, bytes(HOSTILE_LENGTH))]) == [(1, bytes(HOSTILE_LENGTH))]


def test_what_came_before_a_hostile_length_is_delivered_first() -> None:
    decoder = MuxDecoder()
    assert decoder.receive_data(frame(1, b"x") + b"\xff" * 50) == [(1, b"x")]
    with pytest.raises(WireError):
        decoder.receive_data(b"")


def test_a_claimed_length_allocates_nothing() -> None:
    decoder = MuxDecoder()
    assert decoder.receive_data(struct.pack(">II", 1, HOSTILE_LENGTH) + b"ab") == [(1, b"ab")]
    assert decoder.receive_data(b"c") == [(1, b"c")]
    assert decoder._header == b""  # the only thing a decoder keeps


def test_writes_of_two_conns_do_not_interleave() -> None:
    one, two = b"1" * 9000, b"2" * 5000
    assert decode([encode_message(1, one) + encode_message(2, two)]) == [(1, one), (2, two)]


frames_strategy = st.lists(st.tuples(st.sampled_from([0, 1, 2, 3]), st.binary(max_size=40)), max_size=8)


@given(frames=frames_strategy, data=st.data())
def test_chunking_changes_nothing(frames: Frames, data: st.DataObject) -> None:
    trunk = b"".join(frame(conn_id, payload) for conn_id, payload in frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(trunk)), max_size=10)))
    chunks = [trunk[start:end] for start, end in zip([0, *cuts], [*cuts, len(trunk)], strict=True)]
    assert decode(chunks) == runs([pair for pair in frames if pair[0] in (1, 2) and pair[1]])


@given(chunks=st.lists(st.binary(max_size=60), max_size=10))
def test_garbage_gives_pieces_or_a_wire_error(chunks: list[bytes]) -> None:
    decoder, received = MuxDecoder(), 0
    for chunk in chunks:
        try:
            pieces = decoder.receive_data(chunk)
        except WireError:
            return
        received += len(chunk)
        assert all(conn_id in (1, 2) and piece for conn_id, piece in pieces)
        assert len(decoder._header) < 8 and sum(len(piece) for _, piece in pieces) <= received


@given(message=st.binary(min_size=1, max_size=20000), conn_id=st.sampled_from([1, 2]))
def test_what_is_encoded_is_decoded(message: bytes, conn_id: int) -> None:
    assert decode([encode_message(conn_id, message)]) == [(conn_id, message)]


def test_both_conns_are_there_from_the_start() -> None:
    """Go's Dial and Accept have no counterpart: there is nothing to open, and nothing is lost before it is."""
    assert MuxDecoder().receive_data(frame(2, b"first")) == [(2, b"first")]
    assert MuxDecoder().receive_data(frame(1, b"first")) == [(1, b"first")]


def test_a_message_of_three_frames_comes_whole_and_the_next_one_too() -> None:
    """Go: TestTransmittingData, with an empty frame as the end marker."""
    large, small = bytes(3 * MAX_PAYLOAD), b"next"
    trunk = encode_message(1, large) + encode_message(2, small) + frame(1, b"") + encode_message(1, small)
    assert layout(trunk)[:4] == [(1, 4096), (1, MAX_PAYLOAD), (1, MAX_PAYLOAD), (1, MAX_PAYLOAD - 4096)]
    chunks = [trunk[start : start + 65536] for start in range(0, len(trunk), 65536)]
    assert decode(chunks) == [(1, large), (2, small), (1, small)]


def test_two_ttrpc_messages_in_one_frame_are_two() -> None:
    server, client = ServerConnection(), ClientConnection()
    both = client.request("s", "a", b"1")[1] + client.request("s", "b", b"2")[1]
    ((_, payload),) = MuxDecoder().receive_data(frame(1, both))
    server.receive_data(payload)
    found = [server.next_event() for _ in range(3)]
    assert [event and event.stream_id for event in found] == [1, 3, None]
