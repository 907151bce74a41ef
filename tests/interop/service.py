"""peer.proto served by our library: its unary methods, as a blocking server takes them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from nri_rdma.ttrpc import Call, RpcError

SERVICE = "nri_rdma.interop.v1.Peer"
HOLD_LIMIT_S = 20.0


class Peer:
    """The service's state: the keys that calls wait for."""

    def __init__(self) -> None:
        self._released: dict[str, threading.Event] = defaultdict(threading.Event)

    def handlers(self) -> dict[tuple[str, str], Callable[[Call], bytes]]:
        """What a Server takes."""
        methods = {
            "Echo": echo,
            "Zeros": zeros,
            "Fail": fail,
            "Nothing": nothing,
            "Metadata": metadata,
            "Deadline": deadline,
            "Hold": self.hold,
            "Release": self.release,
        }
        return {(SERVICE, name): method for name, method in methods.items()}

    def hold(self, call: Call) -> bytes:
        """Answer once somebody has released the key."""
        key = StringValue.FromString(call.payload).value
        remaining_s = HOLD_LIMIT_S if call.deadline is None else call.deadline - time.monotonic()
        if not self._released[key].wait(remaining_s):
            raise RpcError(4, "context deadline exceeded")
        return call.payload

    def release(self, call: Call) -> bytes:
        """Let go who holds the key."""
        self._released[StringValue.FromString(call.payload).value].set()
        return b""


def echo(call: Call) -> bytes:
    return BytesValue.FromString(call.payload).SerializeToString()


def zeros(call: Call) -> bytes:
    return BytesValue(value=bytes(Int64Value.FromString(call.payload).value)).SerializeToString()


def fail(call: Call) -> bytes:
    text = StringValue.FromString(call.payload).value
    number, _, rest = text.partition(" ")
    if not number.isdecimal():
        raise ValueError(text)
    raise RpcError(int(number), rest)


def nothing(call: Call) -> bytes:
    return None  # type: ignore[return-value]  # the bug this method is for


def metadata(call: Call) -> bytes:
    key = StringValue.FromString(call.payload).value
    values = [value for name, value in call.metadata if name == key]
    return StringValue(value="\n".join(values)).SerializeToString()


def deadline(call: Call) -> bytes:
    left = -1 if call.deadline is None else int((call.deadline - time.monotonic()) * 1e9)
    return Int64Value(value=left).SerializeToString()
