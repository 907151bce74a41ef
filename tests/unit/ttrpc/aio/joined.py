"""A client and a server in one event loop, and the bare bytes of either's peer."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any  # Any: what a coroutine yields

from nri_rdma.ttrpc import Call
from nri_rdma.ttrpc.aio import AsyncClient, AsyncHandler, AsyncServer, AsyncStream, AsyncStreaming
from tests.unit.ttrpc.peers import SOON_S, Peer

SERVICE = "test.Aio"


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
