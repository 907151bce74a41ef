"""What only the asyncio front has: tasks that are cancelled, and a loop that must not be held up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any  # Any: what a coroutine yields

import pytest

from nri_rdma.ttrpc import Call, Code, ConnectionClosed, RpcError
from nri_rdma.ttrpc.aio import AsyncClient, AsyncHandler, AsyncServer, AsyncStream, AsyncStreaming, link
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.peers import DATA, MESSAGE_MAX, REQUEST, SOON_S, Peer

SERVICE = "test.Aio"
Test = Callable[[AsyncClient, Peer], Awaitable[None]]


async def echo(call: Call) -> bytes:
    return call.payload


async def talk(call: Call, stream: AsyncStream) -> None:
    async for payload in stream:
        await stream.send(payload)


def run(work: Coroutine[Any, Any, None]) -> None:
    """In a loop of its own, in debug mode: an exception that nobody fetched or a task that is left is an error."""
    complaints: list[str] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(str(context)))
        async with asyncio.timeout(2 * SOON_S):
            await work
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(watched(), debug=True)
    assert complaints == []


@contextlib.asynccontextmanager
async def answerer() -> AsyncIterator[tuple[AsyncClient, Peer]]:
    """A client, and a bare server of its that a thread has to drive: its socket blocks."""
    ours, theirs = socket.socketpair()
    with Peer(theirs) as peer:
        async with AsyncClient(ours) as client:
            yield client, peer


@contextlib.asynccontextmanager
async def served(path: Path, **handlers: AsyncHandler | AsyncStreaming) -> AsyncIterator[AsyncClient]:
    """A client of a server with those methods."""
    async with AsyncServer({(SERVICE, name): handler for name, handler in handlers.items()}) as server:
        await server.serve_unix(path)
        async with AsyncClient(path) as client:
            yield client


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


def test_a_call_that_is_cancelled_is_given_up_and_its_late_answer_dropped() -> None:
    async def test() -> None:
        async with answerer() as (client, peer):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await client.call(SERVICE, "Echo", b"", timeout_s=None)
            assert client._link._connection.open_streams == 0
            assert peer.frame().stream_id == 1
            peer.respond(1, b"late")
            call = asyncio.ensure_future(client.call(SERVICE, "Echo", b"", timeout_s=None))
            assert (await asyncio.to_thread(peer.frame)).stream_id == 3
            peer.respond(3, b"in time")
            assert await call == b"in time"

    run(test())


def test_a_cancelled_receive_loses_no_message(path: Path) -> None:
    async def test() -> None:
        method = AsyncStreaming(handler=talk, client_streams=True, server_streams=True)
        async with served(path, Talk=method) as client:
            stream = await client.stream(SERVICE, "Talk", client_streams=True, server_streams=True, timeout_s=SOON_S)
            for number in range(50):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await stream.receive()
                        pytest.fail("nothing was sent")
                await stream.send(b"%d" % number)
                assert await stream.receive() == b"%d" % number
            stream.close()

    run(test())


def test_a_handler_is_cancelled_at_its_calls_deadline(path: Path) -> None:
    ended = asyncio.Event()

    async def forever(call: Call) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return b""

    async def test() -> None:
        async with AsyncServer({(SERVICE, "Forever"): forever}) as server:
            ours, theirs = socket.socketpair()
            await server.serve(theirs)
            with Peer(ours) as peer:
                request = pb.Request(service=SERVICE, method="Forever", timeout_nano=20_000_000)
                peer.send(1, REQUEST, request.SerializeToString())
                frame = await asyncio.to_thread(peer.frame)
            assert frame.status == (1, Code.DEADLINE_EXCEEDED, "the call's deadline is over")
            assert ended.is_set()

    run(test())


def test_a_handler_that_cancels_itself_is_an_answer(path: Path) -> None:
    async def weary(call: Call) -> bytes:
        raise asyncio.CancelledError

    async def test() -> None:
        async with served(path, Weary=weary, Echo=echo) as client:
            with pytest.raises(RpcError) as caught:
                await client.call(SERVICE, "Weary", b"", timeout_s=SOON_S)
            assert caught.value.code == Code.CANCELED
            assert await client.call(SERVICE, "Echo", b"x", timeout_s=SOON_S) == b"x"

    run(test())


def test_many_large_calls_at_once_wait_for_the_server_to_read(path: Path) -> None:
    async def test() -> None:
        async with served(path, Echo=echo) as client:
            payloads = [bytes([number]) * 500_000 for number in range(60)]
            calls = [client.call(SERVICE, "Echo", payload, timeout_s=SOON_S) for payload in payloads]
            assert await asyncio.gather(*calls) == payloads

    run(test())


def test_what_is_written_and_not_read_is_bounded() -> None:
    async def test() -> None:
        async with answerer() as (client, peer):
            calls = [
                asyncio.ensure_future(client.call(SERVICE, "Echo", bytes(500_000), timeout_s=0.1)) for _ in range(50)
            ]
            await asyncio.sleep(0)  # each has begun
            assert client._link._unsent() <= link.HIGH_WATER + 500_100
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert {result.code for result in results if isinstance(result, RpcError)} == {Code.DEADLINE_EXCEEDED}
            assert len(results) == 50
            peer.socket.close()

    run(test())


def test_a_caller_that_reads_nothing_loses_the_connection(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WRITE_PATIENCE_S", 0.05)

    async def test() -> None:
        ours, theirs = socket.socketpair()
        async with AsyncServer({(SERVICE, "Echo"): echo}) as server:
            await server.serve(theirs)
            with Peer(ours) as peer:
                for stream_id in (1, 3):
                    request = pb.Request(service=SERVICE, method="Echo", payload=bytes(MESSAGE_MAX - 100))
                    with contextlib.suppress(ConnectionError):
                        await asyncio.to_thread(peer.send, stream_id, REQUEST, request.SerializeToString())
                await server.wait()  # it has no connection any more, and does not listen

    run(test())


def test_a_caller_that_breaks_the_rules_and_reads_nothing_is_not_read() -> None:
    """The server answers each broken frame with more bytes than the frame had."""

    async def test() -> None:
        ours, theirs = socket.socketpair()
        async with AsyncServer({(SERVICE, "Echo"): echo}) as server:
            await server.serve(theirs)
            (connection,) = server._connections
            with Peer(ours) as peer:

                def flood() -> None:
                    with contextlib.suppress(ConnectionError):
                        peer.socket.sendall(struct.pack(">IIBB", 0, 2, REQUEST, 0) * 500_000)

                flooding = asyncio.get_running_loop().run_in_executor(None, flood)
                while connection._may_write is None:
                    await asyncio.sleep(0.001)
                assert not connection._is_reading
                assert connection._unsent() < link.HIGH_WATER + 500
                peer.socket.shutdown(socket.SHUT_RDWR)
                await flooding

    run(test())


def test_one_stream_that_is_full_is_waited_for_and_the_rest_then_flows(path: Path) -> None:
    """Its message is held, not lost, and a call behind it is answered once it has room."""

    async def test() -> None:
        async with answerer() as (client, peer):
            stream = await client.stream(SERVICE, "Talk", client_streams=True, server_streams=True, timeout_s=SOON_S)
            call = asyncio.ensure_future(client.call(SERVICE, "Echo", b"", timeout_s=SOON_S))

            def flood() -> None:
                for _ in range(2):
                    peer.frame()
                for number in range(15):
                    peer.send(1, DATA, bytes([number]) * 100_000)
                peer.respond(3, b"x")

            flooding = asyncio.get_running_loop().run_in_executor(None, flood)
            while client._link._is_reading:
                await asyncio.sleep(0.001)
            assert not call.done()
            assert [(await stream.receive() or b"")[0] for _ in range(15)] == list(range(15))
            assert await call == b"x"
            await flooding
            stream.close()

    run(test())


def test_a_server_waits_until_its_one_connection_ends(path: Path) -> None:
    async def test() -> None:
        ours, theirs = socket.socketpair()
        async with AsyncServer({(SERVICE, "Echo"): echo}) as server:
            await server.serve(theirs.detach())
            waiting = asyncio.ensure_future(server.wait())
            async with AsyncClient(ours) as client:
                assert await client.call(SERVICE, "Echo", b"x", timeout_s=SOON_S) == b"x"
                assert not waiting.done()
            await waiting

    run(test())


def test_a_server_serves_a_socket_that_listens_by_its_number(path: Path) -> None:
    async def test() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        async with AsyncServer({(SERVICE, "Echo"): echo}) as server:
            await server.serve(listener.detach())
            with pytest.raises(RuntimeError):
                await server.serve_unix(path)
            async with AsyncClient(path) as client:
                assert await client.call(SERVICE, "Echo", b"x", timeout_s=SOON_S) == b"x"

    run(test())


def test_a_client_that_never_connected_says_so_and_closes() -> None:
    async def test() -> None:
        client = AsyncClient("/nowhere")
        with pytest.raises(ConnectionClosed, match="connect"):
            await client.call(SERVICE, "Echo", b"", timeout_s=1)
        await client.close()

    run(test())


def test_closing_does_not_wait_for_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WRITE_PATIENCE_S", 0.05)

    async def test() -> None:
        async with answerer() as (client, _peer):
            call = asyncio.ensure_future(client.call(SERVICE, "Echo", bytes(MESSAGE_MAX - 100), timeout_s=None))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(ConnectionClosed):
                await call

    run(test())


def test_what_was_sent_before_closing_arrives() -> None:
    async def test() -> None:
        ours, theirs = socket.socketpair()
        with Peer(theirs) as peer:
            async with AsyncClient(ours) as client:
                stream = await client.stream(SERVICE, "Talk", client_streams=True, server_streams=True, timeout_s=None)
                await stream.send(bytes(1_000_000))
                closing = asyncio.ensure_future(client.close())
                assert (await asyncio.to_thread(peer.frame)).kind == REQUEST
                assert len((await asyncio.to_thread(peer.frame)).data) == 1_000_000
                await closing

    run(test())


def test_a_client_connects_once(path: Path) -> None:
    async def test() -> None:
        async with served(path, Echo=echo) as client:
            with pytest.raises(RuntimeError):
                await client.connect()

    run(test())


def test_a_bug_in_a_handler_is_logged_and_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def text(call: Call) -> bytes:
        return "no bytes"  # type: ignore[return-value]  # the bug

    async def test() -> None:
        async with served(path, Text=text) as client:
            with pytest.raises(RpcError, match="returned str, not bytes") as caught:
                await client.call(SERVICE, "Text", b"", timeout_s=SOON_S)
            assert caught.value.code == Code.UNKNOWN

    run(test())
    assert "a handler failed" in caplog.text
