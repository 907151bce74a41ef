"""Writing while the peer does not read: bounded, waited for, and given up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from pathlib import Path

import pytest

from nri_rdma.ttrpc import Code, RpcError
from nri_rdma.ttrpc.aio import AsyncServer, link
from nri_rdma.ttrpc.pb import ttrpc_pb2 as pb
from tests.unit.ttrpc.aio.joined import SERVICE, answerer, echo, run, served
from tests.unit.ttrpc.peers import MESSAGE_MAX, REQUEST, SOON_S, Peer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t.sock"


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
