"""Stubs and handlers of an event loop: every kind of method, what does not decode, and calls that are given up."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from google.protobuf.wrappers_pb2 import Int64Value, StringValue

from nri_rdma.ttrpc import Call, Client, Code, RpcError
from nri_rdma.ttrpc import typed as blocking
from nri_rdma.ttrpc.aio import AsyncClient, AsyncServer
from nri_rdma.ttrpc.aio.typed import AsyncStub, handlers, stub
from tests.unit.ttrpc.aio.joined import run
from tests.unit.ttrpc.described import describe, number, text
from tests.unit.ttrpc.peers import SOON_S

SERVICE = describe("AsyncTyped")


class Implementation:
    """Of every method but Missing. It notes the generators that were closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def Say(self, request: StringValue, call: Call) -> StringValue:  # noqa: N802 - the service's names
        return StringValue(value=f"{request.value} to {call.full_method} {call.values('who')}")

    async def Count(self, request: Int64Value, call: Call) -> AsyncGenerator[Int64Value]:  # noqa: N802
        try:
            for n in range(request.value):
                yield Int64Value(value=n)
        finally:
            self.closed.set()

    async def Sum(self, requests: AsyncIterator[Int64Value], call: Call) -> Int64Value:  # noqa: N802
        return Int64Value(value=sum([request.value async for request in requests]))

    async def Talk(  # noqa: N802
        self, requests: AsyncIterator[StringValue], call: Call
    ) -> AsyncGenerator[StringValue]:
        async for request in requests:
            if request.value == "stop":
                raise RpcError(Code.OUT_OF_RANGE, "stopped")
            yield StringValue(value=request.value * 2)

    async def Broken(self, request: Int64Value, call: Call) -> Int64Value | None:  # noqa: N802
        return None


@contextlib.asynccontextmanager
async def served(path: Path, implementation: object | None = None) -> AsyncIterator[AsyncStub]:
    """A stub of a server with that implementation."""
    async with AsyncServer(handlers(SERVICE, implementation or Implementation())) as server:
        await server.serve_unix(path / "t.sock")
        async with AsyncClient(path / "t.sock") as client:
            yield stub(client, SERVICE)


def test_each_kind_of_method(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as service:
            reply = await service.Say(text("hi"), timeout_s=SOON_S, metadata=[("Who", "me")])
            assert reply.value == "hi to /test.AsyncTyped/Say ('me',)"
            for count in (0, 1, 20):
                async with await service.Count(number(count), timeout_s=SOON_S) as stream:
                    assert [it.value async for it in stream] == list(range(count))
            async with await service.Sum(timeout_s=SOON_S) as stream:
                for n in range(-3, 10):
                    await stream.send(number(n))
                assert (await stream.result()).value == sum(range(-3, 10))
            async with await service.Talk(timeout_s=SOON_S) as stream:
                for word in ("a", "", "bc"):
                    await stream.send(text(word))
                    assert (await stream.receive()).value == word * 2
                await stream.close_send()
                assert await stream.receive() is None

    run(work())


def test_calls_of_many_tasks_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as service:
            replies = await asyncio.gather(*(service.Say(text(str(it)), timeout_s=SOON_S) for it in range(50)))
            assert [reply.value.split()[0] for reply in replies] == [str(it) for it in range(50)]

    run(work())


def test_a_blocking_stub_calls_a_server_of_a_loop(tmp_path: Path) -> None:
    def call() -> str:
        with Client(tmp_path / "t.sock") as client:
            return str(blocking.stub(client, SERVICE).Say(text("hi"), timeout_s=SOON_S).value)

    async def work() -> None:
        async with served(tmp_path):
            assert (await asyncio.to_thread(call)).startswith("hi to ")

    run(work())


def test_what_an_implementation_raises_is_the_status(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as service, await service.Talk(timeout_s=SOON_S) as stream:
            await stream.send(text("stop"))
            with pytest.raises(RpcError, match="OUT_OF_RANGE: stopped"):
                await stream.receive()

    run(work())


@pytest.mark.parametrize(
    ("method", "refusal"),
    [("Broken", "UNKNOWN: ttrpc: marshal called with nil"), ("Missing", "UNIMPLEMENTED: method Missing")],
)
def test_a_method_without_a_reply_is_refused(tmp_path: Path, method: str, refusal: str) -> None:
    async def work() -> None:
        async with served(tmp_path) as service:
            with pytest.raises(RpcError, match=refusal):
                await getattr(service, method)(number(1), timeout_s=SOON_S)

    run(work())


def test_a_stub_knows_the_methods_of_its_service(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as service:
            assert {"Say", "Count", "Sum", "Talk", "Broken", "Missing"} <= set(dir(service))
            with pytest.raises(AttributeError, match=r"service test\.AsyncTyped has no method Nope"):
                await service.Nope(timeout_s=1)

    run(work())


def test_messages_of_another_type_are_refused_with_both_names(tmp_path: Path) -> None:
    async def work() -> None:
        async with served(tmp_path) as service:
            with pytest.raises(TypeError) as caught:
                await service.Say(number(1), timeout_s=SOON_S)
            takes = "takes google.protobuf.StringValue, not google.protobuf.Int64Value"
            assert str(caught.value) == f"/test.AsyncTyped/Say {takes}"
            async with await service.Talk(timeout_s=SOON_S) as stream:
                with pytest.raises(TypeError) as caught:
                    await stream.send(number(1))
                assert str(caught.value) == f"/test.AsyncTyped/Talk {takes}"
                await stream.send(text("a"))
                assert (await stream.receive()).value == "aa"

    run(work())


@pytest.mark.parametrize("method", ["Say", "Talk"])
def test_a_reply_of_another_type_is_refused_with_both_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    class Wrong:
        async def Say(self, request: StringValue, call: Call) -> Int64Value:  # noqa: N802
            return number(1)

        async def Talk(  # noqa: N802
            self, requests: AsyncIterator[StringValue], call: Call
        ) -> AsyncGenerator[Int64Value]:
            yield number(1)

    refusal = f"/test.AsyncTyped/{method} returns google.protobuf.StringValue, not google.protobuf.Int64Value"

    async def work() -> None:
        async with served(tmp_path, Wrong()) as service:
            with pytest.raises(RpcError) as caught:
                if method == "Say":
                    await service.Say(text("x"), timeout_s=SOON_S)
                else:
                    async with await service.Talk(timeout_s=SOON_S) as stream:
                        await stream.receive()
            assert str(caught.value) == f"INTERNAL: {refusal}"

    run(work())
    logged = [(it.message, vars(it)["error"]) for it in caplog.records if it.levelname == "ERROR"]
    assert logged == [("a handler returned a value of the wrong type", refusal)]


def test_bytes_that_do_not_decode_are_internal_errors_on_either_side(tmp_path: Path) -> None:
    broken = b"\x0a\xff"

    async def answer(call: Call) -> bytes:
        return broken

    async def work() -> None:
        async with AsyncServer(handlers(SERVICE, Implementation())) as server:
            await server.serve_unix(tmp_path / "t.sock")
            async with AsyncClient(tmp_path / "t.sock") as client:
                with pytest.raises(RpcError, match="INTERNAL: ttrpc: error unmarshalling payload: "):
                    await client.call("test.AsyncTyped", "Say", broken, timeout_s=SOON_S)
        async with AsyncServer({("test.AsyncTyped", "Say"): answer}) as server:
            await server.serve_unix(tmp_path / "u.sock")
            async with AsyncClient(tmp_path / "u.sock") as client:
                with pytest.raises(RpcError, match="INTERNAL: ttrpc: error unmarshalling payload: "):
                    await stub(client, SERVICE).Say(text("x"), timeout_s=SOON_S)

    run(work())


def test_a_generator_whose_caller_leaves_is_closed(tmp_path: Path) -> None:
    async def work() -> None:
        implementation = Implementation()
        async with AsyncServer(handlers(SERVICE, implementation)) as server:
            await server.serve_unix(tmp_path / "t.sock")
            async with AsyncClient(tmp_path / "t.sock") as client:
                stream = await stub(client, SERVICE).Count(number(10_000_000), timeout_s=SOON_S)
                assert (await stream.receive()).value == 0
                stream.close()
            async with asyncio.timeout(SOON_S):
                await implementation.closed.wait()

    run(work())
