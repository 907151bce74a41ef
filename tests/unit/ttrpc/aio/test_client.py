"""An asyncio client: calls that are cancelled, connecting once, and closing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nri_rdma.ttrpc import ConnectionClosed
from nri_rdma.ttrpc.aio import AsyncClient, link
from tests.unit.ttrpc.aio.joined import SERVICE, answerer, echo, run, served
from tests.unit.ttrpc.peers import MESSAGE_MAX


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


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


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


def test_a_client_connects_once(path: Path) -> None:
    async def test() -> None:
        async with served(path, Echo=echo) as client:
            with pytest.raises(RuntimeError):
                await client.connect()

    run(test())


def test_the_error_of_a_path_without_a_server_names_the_path(tmp_path: Path) -> None:
    missing = str(tmp_path / "nosuch.sock")

    async def work() -> None:
        with pytest.raises(FileNotFoundError) as caught:
            await AsyncClient(missing).connect()
        assert str(caught.value) == f"[Errno 2] No such file or directory: {missing!r}"

    run(work())
