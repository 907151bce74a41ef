"""Handlers of every kind of stream, and the calls of their clients."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from nri_rdma.ttrpc import Call, Client, Stream, Streaming
from nri_rdma.ttrpc.clientstream import ClientStream
from tests.unit.ttrpc.peers import (
    SOON_S,
)

SERVICE = "test.Streams"


class Service:
    """Handlers of every kind. Hold does not take its messages until the gate is open."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.entered = threading.Semaphore(0)
        self.ended: list[str] = []
        self.calls: list[Call] = []

    def handlers(self) -> dict[tuple[str, str], object]:
        def both(handler: object) -> Streaming:
            return Streaming(handler=handler, client_streams=True, server_streams=True)  # type: ignore[arg-type] # bound

        return {
            (SERVICE, "Unary"): lambda call: call.payload,
            (SERVICE, "EchoStream"): both(self.echo),
            (SERVICE, "Sum"): Streaming(handler=self.sum, client_streams=True, server_streams=False),
            (SERVICE, "Divide"): Streaming(handler=self.divide, client_streams=False, server_streams=True),
            (SERVICE, "Last"): Streaming(
                handler=lambda call, stream: b"last", client_streams=False, server_streams=True
            ),
            (SERVICE, "Nothing"): Streaming(
                handler=lambda call, stream: None, client_streams=True, server_streams=False
            ),
            (SERVICE, "Hold"): both(self.hold),
            (SERVICE, "Fan"): both(self.fan),
            (SERVICE, "Big"): both(self.big),
            (SERVICE, "Flood"): Streaming(handler=self.flood, client_streams=False, server_streams=True),
        }

    def echo(self, call: Call, stream: Stream) -> None:
        self.calls.append(call)
        for payload in stream:
            stream.send(b"echo " + payload)

    def sum(self, call: Call, stream: Stream) -> bytes:
        self.calls.append(call)
        return b"%d" % sum(int(payload or b"0") for payload in stream)

    def divide(self, call: Call, stream: Stream) -> None:
        request = stream.receive()
        assert request is not None and stream.receive() is None
        for n in range(int(request or b"2")):
            stream.send(b"%d" % n)

    def hold(self, call: Call, stream: Stream) -> bytes | None:
        """Says how it ended."""
        self.calls.append(call)
        self.entered.release()
        self.gate.wait(SOON_S)
        taken = 0
        try:
            for _ in stream:
                taken += 1
        except Exception as error:
            self.ended.append(f"{taken} then {type(error).__name__} {error}, cancelled {call.cancelled.is_set()}")
            raise
        self.ended.append(f"{taken}")
        return b"%d" % taken

    def fan(self, call: Call, stream: Stream) -> None:
        """Ten threads send for each message, as Go's EchoNullStream does."""
        with ThreadPoolExecutor(10) as pool:
            for _ in stream:
                for _ in range(10):
                    pool.submit(stream.send, b"")

    def big(self, call: Call, stream: Stream) -> None:
        for payload in stream:
            stream.send(bytes(int(payload)))

    def flood(self, call: Call, stream: Stream) -> None:
        self.entered.release()
        for n in range(int(stream.receive() or b"0")):
            stream.send(b"%d" % n * 100)


def bidi(client: Client, method: str = "EchoStream", timeout_s: float | None = SOON_S) -> ClientStream:
    return client.stream(SERVICE, method, client_streams=True, server_streams=True, timeout_s=timeout_s)


def replies(client: Client, method: str, payload: bytes) -> ClientStream:
    return client.stream(SERVICE, method, payload, client_streams=False, server_streams=True, timeout_s=SOON_S)


def uploads(client: Client, method: str = "Sum") -> ClientStream:
    return client.stream(SERVICE, method, client_streams=True, server_streams=False, timeout_s=SOON_S)


def send_all(stream: ClientStream, payloads: list[bytes]) -> None:
    for payload in payloads:
        stream.send(payload)
