"""The same streams between every two makes."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value

from nri_rdma.ttrpc import Code, RpcError
from tests.interop.parties import Caller

MESSAGE_MAX = 4 << 20


def number(value: int) -> bytes:
    return Int64Value(value=value).SerializeToString()


def message(size: int) -> bytes:
    return BytesValue(value=b"x" * size).SerializeToString()


def test_the_callers_messages_become_one_answer(caller: Caller) -> None:
    stream = caller.open("Sum", client=True, server=False)
    for value in range(1, 11):
        stream.send(number(value))
    assert stream.result() == number(55)


def test_no_message_at_all_has_an_answer_too(caller: Caller) -> None:
    assert caller.open("Sum", client=True, server=False).result() == number(0) == b""


def test_one_request_has_many_messages_and_an_end(caller: Caller) -> None:
    stream = caller.open("Count", client=False, server=True, payload=number(5))
    assert [stream.receive() for _ in range(6)] == [number(value) for value in range(5)] + [None]


def test_an_empty_request_has_its_answer(caller: Caller) -> None:
    """Zero is a message without bytes: a server that waited for some would wait for ever."""
    assert caller.open("Count", client=False, server=True, payload=number(0)).receive() is None


@pytest.mark.parametrize("count", [0, 3])
def test_a_status_ends_a_stream_after_its_messages(caller: Caller, count: int) -> None:
    stream = caller.open("CountFail", client=False, server=True, payload=number(count))
    assert [stream.receive() for _ in range(count)] == [number(value) for value in range(count)]
    with pytest.raises(RpcError) as caught:
        stream.receive()
    assert (caught.value.code, caught.value.message) == (Code.ABORTED, f"no number after {count}")


def test_both_talk_in_turn(caller: Caller) -> None:
    stream = caller.open("EchoStream", client=True, server=True)
    for size in (1, 0, 100, 4086, 70_000):
        stream.send(message(size))
        assert stream.receive() == message(size)
    stream.close_send()
    assert stream.receive() is None


def test_a_message_without_bytes_is_a_message(caller: Caller) -> None:
    stream = caller.open("EchoStream", client=True, server=True)
    for _ in range(3):
        stream.send(b"")
    stream.close_send()
    assert [stream.receive() for _ in range(4)] == [b"", b"", b"", None]


def test_the_longest_message_passes_and_a_longer_one_stays_here(caller: Caller) -> None:
    stream = caller.open("EchoStream", client=True, server=True)
    longest = next(message(MESSAGE_MAX - n) for n in range(10) if len(message(MESSAGE_MAX - n)) == MESSAGE_MAX)
    with pytest.raises(RpcError) as caught:
        stream.send(longest + b"\0")
    assert caught.value.code == Code.RESOURCE_EXHAUSTED
    stream.send(longest)
    assert stream.receive() == longest
    stream.close_send()
    assert stream.receive() is None


def test_a_message_that_is_none_fails_its_stream(caller: Caller) -> None:
    stream = caller.open("EchoStream", client=True, server=True)
    stream.send(b"\x0a\xff")
    with pytest.raises(RpcError) as caught:
        stream.receive()
    assert caught.value.code == Code.INTERNAL
    assert caught.value.message.startswith("ttrpc: error unmarshalling payload: ")


def test_a_method_of_messages_that_nobody_has_is_unimplemented(caller: Caller) -> None:
    with pytest.raises(RpcError) as caught:
        caller.open("Nope", client=True, server=True).receive()
    assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, "method Nope")


def test_streams_and_calls_share_a_connection(caller: Caller) -> None:
    streams = [caller.open("EchoStream", client=True, server=True) for _ in range(8)]
    for round_ in range(3):
        for size, stream in enumerate(streams):
            stream.send(message(size + round_))
        assert caller.call("Echo", message(9)) == message(9)
        for size, stream in reversed(list(enumerate(streams))):
            assert stream.receive() == message(size + round_)
    for stream in streams:
        stream.close_send()
        assert stream.receive() is None
    assert caller.open("Count", client=False, server=True, payload=number(1)).receive() == number(0)


def test_more_messages_than_gos_queue_holds_arrive_when_they_are_taken(caller: Caller) -> None:
    stream = caller.open("Count", client=False, server=True, payload=number(2_000))
    assert sum(1 for _ in iter(stream.receive, None)) == 2_000
