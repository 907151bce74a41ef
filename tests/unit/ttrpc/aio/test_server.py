"""The sockets that an asyncio server is given."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from nri_rdma.ttrpc.aio import AsyncClient, AsyncServer
from tests.unit.ttrpc.aio.joined import SERVICE, echo, run
from tests.unit.ttrpc.peers import SOON_S


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


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
