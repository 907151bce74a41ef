"""peer.proto served by our library, as an asyncio server takes it."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable

from google.protobuf.wrappers_pb2 import BytesValue, Int64Value, StringValue

from nri_rdma.ttrpc import Call, Code, RpcError
from nri_rdma.ttrpc.aio import AsyncHandler, AsyncStream, AsyncStreaming
from tests.interop import service
from tests.interop.service import SERVICE, decoded, number


class AsyncPeer:
    """The service's state: the keys that calls wait for."""

    def __init__(self) -> None:
        self._released: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def handlers(self) -> dict[tuple[str, str], AsyncHandler | AsyncStreaming]:
        """What an AsyncServer takes."""
        methods: dict[str, AsyncHandler | AsyncStreaming] = {
            "Echo": quick(service.echo),
            "Zeros": quick(service.zeros),
            "Fail": quick(service.fail),
            "Nothing": quick(service.nothing),
            "Metadata": quick(service.metadata),
            "Deadline": quick(service.deadline),
            "Hold": self.hold,
            "Release": self.release,
            "Sum": AsyncStreaming(handler=add, client_streams=True, server_streams=False),
            "Count": AsyncStreaming(handler=count, client_streams=False, server_streams=True),
            "CountFail": AsyncStreaming(handler=count_fail, client_streams=False, server_streams=True),
            "EchoStream": AsyncStreaming(handler=echo_stream, client_streams=True, server_streams=True),
        }
        return {(SERVICE, name): method for name, method in methods.items()}

    async def hold(self, call: Call) -> bytes:
        """Answer once somebody has released the key."""
        await self._released[decoded(StringValue, call.payload).value].wait()
        return call.payload

    async def release(self, call: Call) -> bytes:
        """Let go who holds the key."""
        self._released[decoded(StringValue, call.payload).value].set()
        return b""


def quick(handler: Callable[[Call], bytes]) -> AsyncHandler:
    """A handler that does not wait."""

    async def answer(call: Call) -> bytes:
        return handler(call)

    return answer


async def add(call: Call, stream: AsyncStream) -> bytes:
    total = 0
    async for payload in stream:
        total += decoded(Int64Value, payload).value
    return number(total)


async def count(call: Call, stream: AsyncStream) -> None:
    for value in range(decoded(Int64Value, await stream.receive() or b"").value):
        await stream.send(number(value))


async def count_fail(call: Call, stream: AsyncStream) -> None:
    await count(call, stream)
    raise RpcError(Code.ABORTED, f"no number after {decoded(Int64Value, call.payload).value}")


async def echo_stream(call: Call, stream: AsyncStream) -> None:
    async for payload in stream:
        await stream.send(decoded(BytesValue, payload).SerializeToString())
