"""The two ends of a connection, in every make: what calls peer.proto, and what serves it.

All are driven from a test's thread: asyncio's ends live in a loop of their own, Go's in a process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from nri_rdma.ttrpc import Client, Server
from nri_rdma.ttrpc.aio import AsyncClient, AsyncClientStream, AsyncServer
from nri_rdma.ttrpc.clientstream import ClientStream
from tests.interop.aservice import AsyncPeer
from tests.interop.gopeer import TIMEOUT_S, GoClient, go_server
from tests.interop.service import SERVICE, Peer
from tests.unit.ttrpc.fronts import Loop

MANY: Final = 64
"""Calls that run at once, at most."""
Pairs = Iterable[tuple[str, str]]


class CallerStream(Protocol):
    """A stream of any client."""

    def send(self, payload: bytes) -> None:
        """Send one message."""

    def close_send(self) -> None:
        """Say that no message follows."""

    def receive(self) -> bytes | None:
        """Return the next message; None at the end of the server's messages."""

    def result(self) -> bytes:
        """Say that no message follows, and return the one answer."""


class Caller(Protocol):
    """A client of the service; what it does raises RpcError and ConnectionClosed."""

    def call(self, method: str, payload: bytes, *, timeout_s: float | None = ..., metadata: Pairs = ...) -> bytes:
        """Call and return the answer's payload."""

    def begin(
        self, method: str, payload: bytes, *, timeout_s: float | None = ..., metadata: Pairs = ...
    ) -> Future[bytes]:
        """Call, and wait for the answer later."""

    def open(self, method: str, *, client: bool, server: bool, payload: bytes = ...) -> CallerStream:
        """Open a stream; client and server say who may send more than one message on it."""


class BlockingCaller:
    """Our blocking client."""

    def __init__(self, path: Path) -> None:
        self._client = Client(path)
        self._threads = ThreadPoolExecutor(MANY)

    def call(self, method: str, payload: bytes, *, timeout_s: float | None = TIMEOUT_S, metadata: Pairs = ()) -> bytes:
        return self._client.call(SERVICE, method, payload, timeout_s=timeout_s, metadata=metadata)

    def begin(
        self, method: str, payload: bytes, *, timeout_s: float | None = TIMEOUT_S, metadata: Pairs = ()
    ) -> Future[bytes]:
        return self._threads.submit(self.call, method, payload, timeout_s=timeout_s, metadata=metadata)

    def open(self, method: str, *, client: bool, server: bool, payload: bytes = b"") -> ClientStream:
        return self._client.stream(
            SERVICE, method, payload, client_streams=client, server_streams=server, timeout_s=TIMEOUT_S
        )

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown()


class AsyncCaller:
    """Our client of asyncio."""

    def __init__(self, path: Path) -> None:
        self._loop = Loop()
        self._client = AsyncClient(path)
        self._loop.run(self._client.connect())

    def call(self, method: str, payload: bytes, *, timeout_s: float | None = TIMEOUT_S, metadata: Pairs = ()) -> bytes:
        return self.begin(method, payload, timeout_s=timeout_s, metadata=metadata).result(TIMEOUT_S)

    def begin(
        self, method: str, payload: bytes, *, timeout_s: float | None = TIMEOUT_S, metadata: Pairs = ()
    ) -> Future[bytes]:
        return self._loop.begin(self._client.call(SERVICE, method, payload, timeout_s=timeout_s, metadata=metadata))

    def open(self, method: str, *, client: bool, server: bool, payload: bytes = b"") -> AsyncCallerStream:
        opened = self._client.stream(
            SERVICE, method, payload, client_streams=client, server_streams=server, timeout_s=TIMEOUT_S
        )
        return AsyncCallerStream(self._loop, self._loop.run(opened))

    def close(self) -> None:
        self._loop.run(self._client.close())
        self._loop.close()


class AsyncCallerStream:
    """A stream of our client of asyncio."""

    def __init__(self, loop: Loop, stream: AsyncClientStream) -> None:
        self._loop = loop
        self._stream = stream

    def send(self, payload: bytes) -> None:
        self._loop.run(self._stream.send(payload))

    def close_send(self) -> None:
        self._loop.run(self._stream.close_send())

    def receive(self) -> bytes | None:
        return self._loop.run(self._stream.receive())

    def result(self) -> bytes:
        return self._loop.run(self._stream.result())


@contextmanager
def blocking_caller(path: Path) -> Iterator[Caller]:
    """Our blocking client on a socket."""
    caller = BlockingCaller(path)
    try:
        yield caller
    finally:
        caller.close()


@contextmanager
def async_caller(path: Path) -> Iterator[Caller]:
    """Our client of asyncio on a socket."""
    caller = AsyncCaller(path)
    try:
        yield caller
    finally:
        caller.close()


@contextmanager
def blocking_server(path: Path) -> Iterator[None]:
    """Our blocking server on a socket."""
    with Server(Peer().handlers(), max_calls=MANY) as server:
        server.serve_unix(path)
        yield


@contextmanager
def async_server(path: Path) -> Iterator[None]:
    """Our server of asyncio on a socket."""
    loop = Loop()
    server = loop.run(_started(path))
    try:
        yield
    finally:
        loop.run(server.close())
        loop.close()


async def _started(path: Path) -> AsyncServer:
    server = AsyncServer(AsyncPeer().handlers(), max_calls=MANY)
    await server.serve_unix(path)
    return server


CALLERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Caller]]]] = {
    "blocking": blocking_caller,
    "asyncio": async_caller,
    "go": GoClient,
}
SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[None]]]] = {
    "blocking": blocking_server,
    "asyncio": async_server,
    "go": go_server,
}
