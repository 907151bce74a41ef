"""A service that echoes, waits and fails, and what its tests look at."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

from nri_rdma.ttrpc import Call, Client, Code, RpcError

MESSAGE_MAX = 4 << 20


class Service:
    """The handlers of these tests; calls to Wait block until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self.calls: list[Call] = []

    def handlers(self) -> dict[tuple[str, str], Callable[[Call], bytes]]:
        return {
            ("test.Echo", "Echo"): lambda call: call.payload,
            ("test.Echo", "Big"): lambda call: bytes(int(call.payload)),
            ("test.Echo", "Record"): self.record,
            ("test.Echo", "Wait"): self.wait,
            ("test.Echo", "Refuse"): self.refuse,
            ("test.Echo", "Crash"): self.crash,
            ("test.Echo", "Nothing"): lambda call: None,  # handlers' bugs
            ("test.Echo", "Text"): lambda call: "text",
        }

    def record(self, call: Call) -> bytes:
        self.calls.append(call)
        return b""

    def wait(self, call: Call) -> bytes:
        self.waiting.release()
        self.gate.wait(30)
        return call.payload

    def refuse(self, call: Call) -> bytes:
        raise RpcError(Code.FAILED_PRECONDITION, f"not {call.payload.decode()}")

    def crash(self, call: Call) -> bytes:
        raise KeyError("boom")


def echo(client: Client, payload: bytes, timeout_s: float | None = 5) -> bytes:
    return client.call("test.Echo", "Echo", payload, timeout_s=timeout_s)


def is_idle(client: Client) -> bool:
    """No trace is left of any call."""
    return not client._channel._pending and not client._channel._connection.open_streams


def ttrpc_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ttrpc-")]


def soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 5
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def read_frame(connection: socket.socket) -> tuple[int, int, bytes]:
    with connection.makefile("rb", buffering=0) as stream:

        def exactly(size: int) -> bytes:
            data = b""
            while len(data) < size:
                data += (piece := stream.read(size - len(data)) or b"")
                assert piece, "closed"
            return data

        length, stream_id, kind, _flags = struct.unpack(">IIBB", exactly(10))
        return stream_id, kind, exactly(length)
