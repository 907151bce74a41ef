"""A caller that goes while one of its calls waits behind max_calls others."""

from __future__ import annotations

import asyncio
import queue
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from nri_rdma.ttrpc import Call, Client, Server
from nri_rdma.ttrpc.aio import AsyncServer
from nri_rdma.ttrpc.wire import ClientConnection

CALLS = 3
SOON_S = 30.0


def three_calls() -> bytes:
    client = ClientConnection()
    return b"".join(client.request("s", "m", b"")[1] for _ in range(CALLS))


def test_the_calls_that_run_are_told(tmp_path: Path) -> None:
    told: queue.Queue[bool] = queue.Queue()

    def waits(call: Call) -> bytes:
        told.put(call.cancelled.wait(SOON_S))
        return b""

    with Server({("s", "m"): waits}, max_calls=CALLS - 1) as server:
        server.serve_unix(tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(tmp_path / "s"))
            caller.sendall(three_calls())
        assert [told.get(timeout=SOON_S) for _ in range(CALLS - 1)] == [True] * (CALLS - 1)


def test_the_tasks_that_run_are_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        cancelled: asyncio.Queue[None] = asyncio.Queue()

        async def waits(_call: Call) -> bytes:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.put_nowait(None)
                raise
            return b""

        async with AsyncServer({("s", "m"): waits}, max_calls=CALLS - 1) as server:
            await server.serve_unix(tmp_path / "s")
            _, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(three_calls())
            await writer.drain()
            writer.close()
            async with asyncio.timeout(SOON_S):
                for _ in range(CALLS - 1):
                    await cancelled.get()

    asyncio.run(run())


def test_a_caller_that_stays_gets_all_answers(tmp_path: Path) -> None:
    with Server({("s", "m"): lambda call: (call.cancelled.wait(1.5), b"x")[1]}, max_calls=CALLS - 1) as server:
        server.serve_unix(tmp_path / "s")
        with Client(tmp_path / "s") as client, ThreadPoolExecutor(CALLS) as pool:
            answers = [pool.submit(client.call, "s", "m", b"", timeout_s=SOON_S) for _ in range(CALLS)]
            assert [answer.result() for answer in answers] == [b"x"] * CALLS
