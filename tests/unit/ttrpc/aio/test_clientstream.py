"""A call of messages, as its asyncio caller uses it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from nri_rdma.ttrpc.aio import AsyncClient, AsyncStreaming
from tests.unit.ttrpc.aio.joined import SERVICE, answerer, run, served, talk
from tests.unit.ttrpc.peers import DATA, REQUEST, SOON_S, Peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


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
