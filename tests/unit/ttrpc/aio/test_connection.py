"""The handlers of an asyncio server's connection: how they end, and what their caller gets."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Call, Code, RpcError
from nri_rdma.ttrpc.aio import AsyncServer
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.aio.joined import SERVICE, echo, run, served
from tests.unit.ttrpc.peers import REQUEST, SOON_S, Peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


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
