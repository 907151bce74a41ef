"""The same calls between every two makes: what a caller sees does not tell who wrote the other end."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from nri_rdma.ttrpc import Code, ConnectionClosed, RpcError
from tests.interop.parties import CALLERS, MANY, SERVERS, Caller

MESSAGE_MAX = 4 << 20


def text(value: str) -> bytes:
    return StringValue(value=value).SerializeToString()


def number(value: int) -> bytes:
    return Int64Value(value=value).SerializeToString()


def echo_request_of(size: int) -> bytes:
    """A message of that many bytes, which need not be what its frame has."""
    for overhead in range(6):
        payload = BytesValue(value=bytes(max(size - overhead, 0))).SerializeToString()
        if len(payload) == size:
            return payload
    raise ValueError(f"no BytesValue has {size} bytes")


def refused(caller: Caller, method: str, payload: bytes) -> tuple[int, str]:
    with pytest.raises(RpcError) as caught:
        caller.call(method, payload)
    return caught.value.code, caught.value.message


@pytest.mark.parametrize("size", [0, 3, 100, 4086, 4087, 65536, 1_000_000])
def test_a_payload_comes_back(caller: Caller, size: int) -> None:
    payload = echo_request_of(size)
    assert caller.call("Echo", payload) == payload
    assert caller.call("Echo", payload, timeout_s=None) == payload


def test_a_message_that_just_fits_its_frame_passes_both_ways(caller: Caller) -> None:
    """A Request names service, method and deadline beside the payload: a Response could hold a longer one."""
    overhead = len(b"\x0a\x18nri_rdma.interop.v1.Peer" + b"\x12\x04Echo" + b"\x1a\x80\x80\x80\x02")
    payload = echo_request_of(MESSAGE_MAX - overhead)
    assert caller.call("Echo", payload, timeout_s=None) == payload
    response_overhead = len(b"\x12\xfa\xff\xff\x01") + len(b"\x0a\xf5\xff\xff\x01")
    answer = caller.call("Zeros", number(MESSAGE_MAX - response_overhead))
    assert len(BytesValue.FromString(answer).value) == MESSAGE_MAX - response_overhead


def test_a_request_that_is_too_long_is_not_sent_and_harms_nobody(caller: Caller) -> None:
    code, said = refused(caller, "Echo", echo_request_of(MESSAGE_MAX + 1))
    assert code == Code.RESOURCE_EXHAUSTED
    assert "exceed maximum message size of 4194304" in said
    assert caller.call("Echo", b"") == b""


def test_an_answer_that_is_too_long_fails_its_caller(caller: Caller, pair: tuple[str, str]) -> None:
    """Go's server ends the connection; ours says so and stays."""
    if pair[1] == "go":
        with pytest.raises(ConnectionClosed):
            caller.call("Zeros", number(MESSAGE_MAX))
        return
    code, said = refused(caller, "Zeros", number(MESSAGE_MAX))
    assert code == Code.RESOURCE_EXHAUSTED
    assert "exceed maximum message size of 4194304" in said
    assert caller.call("Echo", b"") == b""


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.OK], ids=lambda code: str(code.name))
def test_every_status_arrives_with_its_text(caller: Caller, code: Code) -> None:
    assert refused(caller, "Fail", text(f"{code.value} not näw, {code.name}")) == (code, f"not näw, {code.name}")


def test_an_unknown_status_stays_a_number(caller: Caller) -> None:
    assert refused(caller, "Fail", text("77 what is this")) == (77, "what is this")


def test_an_error_that_is_no_status_is_unknown(caller: Caller) -> None:
    assert refused(caller, "Fail", text("boom")) == (Code.UNKNOWN, "boom")


def test_a_method_that_nobody_has_is_unimplemented(caller: Caller) -> None:
    assert refused(caller, "Nope", b"") == (Code.UNIMPLEMENTED, "method Nope")


def test_a_payload_that_is_no_message_is_told_from_a_failure_of_the_method(caller: Caller) -> None:
    code, said = refused(caller, "Echo", b"\x0a\xff")
    assert code == Code.INTERNAL
    assert said.startswith("ttrpc: error unmarshalling payload: ")


def test_a_method_that_answers_nothing_fails(caller: Caller) -> None:
    assert refused(caller, "Nothing", b"") == (Code.UNKNOWN, "ttrpc: marshal called with nil")


def test_metadata_arrives_with_its_keys_in_lower_case_and_repeated_ones_in_order(caller: Caller) -> None:
    metadata = [("Key", "1"), ("other", "x"), ("key", "2"), ("KEY", "3")]
    assert caller.call("Metadata", text("key"), metadata=metadata) == text("1\n2\n3")
    assert caller.call("Metadata", text("missing"), metadata=metadata) == b""


def test_a_deadline_reaches_the_handler(caller: Caller) -> None:
    left = Int64Value.FromString(caller.call("Deadline", b"", timeout_s=15)).value
    assert 5e9 < left <= 15e9
    assert caller.call("Deadline", b"", timeout_s=None) == number(-1)


def test_a_caller_stops_waiting_and_the_late_answer_disturbs_nobody(caller: Caller) -> None:
    with pytest.raises(RpcError) as caught:
        caller.call("Hold", text("late"), timeout_s=0.05)
    assert caught.value.code == Code.DEADLINE_EXCEEDED
    caller.call("Release", text("late"))
    assert caller.call("Echo", b"") == b""


def test_calls_are_answered_in_whatever_order_they_are_done(caller: Caller) -> None:
    keys = [f"k{n}" for n in range(MANY // 2)]
    held = {key: caller.begin("Hold", text(key)) for key in keys}
    for key in reversed(keys):
        assert not held[key].done()
        caller.call("Release", text(key))
        assert held[key].result(20) == text(key)


def test_the_end_of_the_server_ends_calls_and_streams(pair: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "peer.sock"
    with ExitStack() as client_side, ExitStack() as server_side:
        server_side.enter_context(SERVERS[pair[1]](path))
        caller = client_side.enter_context(CALLERS[pair[0]](path))
        call = caller.begin("Hold", text("never"))
        stream = caller.open("EchoStream", client=True, server=True)
        stream.send(b"")
        assert stream.receive() == b""
        server_side.close()
        with pytest.raises(ConnectionClosed):
            call.result(20)
        with pytest.raises(ConnectionClosed):
            stream.receive()
        with pytest.raises(ConnectionClosed):
            caller.call("Echo", b"")


def test_many_calls_at_once_find_their_callers(caller: Caller) -> None:
    calls: dict[bytes, Future[bytes]] = {}
    for n in range(200):
        payload = BytesValue(value=b"%d" % n * (1 + n * 20)).SerializeToString()
        calls[payload] = caller.begin("Echo", payload)
    for payload, answer in calls.items():
        assert answer.result(20) == payload
