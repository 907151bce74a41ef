"""peer.proto served by our library, as a blocking server takes it."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from nri_rdma.ttrpc import Call, Code, Handler, RpcError, Stream, Streaming

M = TypeVar("M", bound=Message)

SERVICE: Final = "nri_rdma.interop.v1.Peer"
HOLD_LIMIT_S: Final = 20.0
LATE: Final = "context deadline exceeded"


class Peer:
    """The service's state: the keys that calls wait for."""

    def __init__(self) -> None:
        self._released: dict[str, threading.Event] = defaultdict(threading.Event)

    def handlers(self) -> dict[tuple[str, str], Handler | Streaming]:
        """What a Server takes."""
        methods: dict[str, Handler | Streaming] = {
            "Echo": echo,
            "Zeros": zeros,
            "Fail": fail,
            "Nothing": nothing,
            "Metadata": metadata,
            "Deadline": deadline,
            "Hold": self.hold,
            "Release": self.release,
            "Sum": Streaming(handler=add, client_streams=True, server_streams=False),
            "Count": Streaming(handler=count, client_streams=False, server_streams=True),
            "CountFail": Streaming(handler=count_fail, client_streams=False, server_streams=True),
            "EchoStream": Streaming(handler=echo_stream, client_streams=True, server_streams=True),
        }
        return {(SERVICE, name): method for name, method in methods.items()}

    def hold(self, call: Call) -> bytes:
        """Answer once somebody has released the key."""
        key = decoded(StringValue, call.payload).value
        end = time.monotonic() + HOLD_LIMIT_S if call.deadline is None else call.deadline
        while not self._released[key].wait(0.02):
            if call.cancelled.is_set() or time.monotonic() > end:
                raise RpcError(Code.DEADLINE_EXCEEDED, LATE)
        return call.payload

    def release(self, call: Call) -> bytes:
        """Let go who holds the key."""
        self._released[decoded(StringValue, call.payload).value].set()
        return b""


def echo(call: Call) -> bytes:
    return decoded(BytesValue, call.payload).SerializeToString()


def zeros(call: Call) -> bytes:
    return BytesValue(value=bytes(decoded(Int64Value, call.payload).value)).SerializeToString()


def fail(call: Call) -> bytes:
    text = decoded(StringValue, call.payload).value
    number, _, rest = text.partition(" ")
    if not number.isdecimal():
        raise ValueError(text)
    raise RpcError(int(number), rest)


def nothing(call: Call) -> bytes:
    return None  # type: ignore[return-value]  # the bug this method is for


def metadata(call: Call) -> bytes:
    key = decoded(StringValue, call.payload).value
    values = [value for name, value in call.metadata if name == key]
    return StringValue(value="\n".join(values)).SerializeToString()


def deadline(call: Call) -> bytes:
    left = -1 if call.deadline is None else int((call.deadline - time.monotonic()) * 1e9)
    return Int64Value(value=left).SerializeToString()


def add(call: Call, stream: Stream) -> bytes:
    return number(sum(decoded(Int64Value, payload).value for payload in stream))


def count(call: Call, stream: Stream) -> None:
    for value in range(decoded(Int64Value, stream.receive() or b"").value):
        stream.send(number(value))


def count_fail(call: Call, stream: Stream) -> None:
    end = decoded(Int64Value, call.payload).value
    count(call, stream)
    raise RpcError(Code.ABORTED, f"no number after {end}")


def echo_stream(call: Call, stream: Stream) -> None:
    for payload in stream:
        stream.send(decoded(BytesValue, payload).SerializeToString())


def number(value: int) -> bytes:
    return Int64Value(value=value).SerializeToString()


def decoded(kind: type[M], payload: bytes) -> M:
    """The message, or what Go's server answers when it is none."""
    try:
        return kind.FromString(payload)
    except DecodeError as exc:
        raise RpcError(Code.INTERNAL, f"ttrpc: error unmarshalling payload: {exc}") from exc
