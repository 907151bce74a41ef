"""The two ends of a connection, in every make: what calls peer.proto, and what serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from nri_rdma.ttrpc import Client, Server
from tests.interop.gopeer import TIMEOUT_S, GoClient, go_server
from tests.interop.service import SERVICE, Peer

MANY: Final = 64
"""Calls that run at once, at most."""


class Caller(Protocol):
    """A client of the service; both methods raise RpcError and ConnectionClosed."""

    def call(
        self, method: str, payload: bytes, *, timeout_s: float | None = ..., metadata: Iterable[tuple[str, str]] = ...
    ) -> bytes:
        """Call and return the answer's payload."""

    def begin(
        self, method: str, payload: bytes, *, timeout_s: float | None = ..., metadata: Iterable[tuple[str, str]] = ...
    ) -> Future[bytes]:
        """Call, and wait for the answer later."""


class BlockingCaller:
    """Our blocking client."""

    def __init__(self, path: Path) -> None:
        self._client = Client(path)
        self._threads = ThreadPoolExecutor(MANY)

    def call(
        self,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None = TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> bytes:
        return self._client.call(SERVICE, method, payload, timeout_s=timeout_s, metadata=metadata)

    def begin(
        self,
        method: str,
        payload: bytes,
        *,
        timeout_s: float | None = TIMEOUT_S,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> Future[bytes]:
        return self._threads.submit(self.call, method, payload, timeout_s=timeout_s, metadata=metadata)

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown()


@contextmanager
def blocking_caller(path: Path) -> Iterator[Caller]:
    """Our blocking client on a socket."""
    caller = BlockingCaller(path)
    try:
        yield caller
    finally:
        caller.close()


@contextmanager
def blocking_server(path: Path) -> Iterator[None]:
    """Our blocking server on a socket."""
    with Server(Peer().handlers()) as server:
        server.serve_unix(path)
        yield


CALLERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[Caller]]]] = {
    "blocking": blocking_caller,
    "go": GoClient,
}
SERVERS: Final[Mapping[str, Callable[[Path], AbstractContextManager[None]]]] = {
    "blocking": blocking_server,
    "go": go_server,
}
