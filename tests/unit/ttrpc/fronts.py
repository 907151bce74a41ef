"""Both fronts of the library, blocking and asyncio, driven alike from a test's thread.

The service: Echo, Refuse and Crash do what they say; Wait answers when the gate is open, and notes that it was
cancelled; Talk echoes messages; Deaf takes no message until the gate is open, then says how many there were.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar  # Any: what a coroutine yields, and the keywords that are passed on

from nri_rdma.ttrpc import Call, Client, Code, ConnectionClosed, Handler, RpcError, Server, Stream, Streaming
from nri_rdma.ttrpc.aio import AsyncClient, AsyncClientStream, AsyncHandler, AsyncServer, AsyncStream, AsyncStreaming
from nri_rdma.ttrpc.clientstream import ClientStream
from nri_rdma.ttrpc.outgoing import Outgoing
from tests.unit.ttrpc.peers import SOON_S

R = TypeVar("R")
SERVICE: Final = "test.Front"


class Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="loop")
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Run it there, and wait for it later."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run it there."""
        return self.begin(work).result(2 * SOON_S)

    def close(self) -> None:
        """End; nothing may be left to do."""
        left = self.run(self._left())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SOON_S)
        self.loop.close()
        assert left == []

    async def _left(self) -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]


class Service:
    """What the handlers of both fronts note."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        """Released by each handler that waits at the gate."""
        self.cancelled = threading.Event()
        """Whether Wait, or a stream, saw that its caller has gone."""
        self.trail: list[str] = []
        """What interceptors saw."""

    def refuse(self, call: Call) -> bytes:
        raise RpcError(Code.FAILED_PRECONDITION, f"not {call.payload.decode()}")

    def crash(self, call: Call) -> bytes:
        raise PermissionError("boom")


class ServerFront(Protocol):
    """A server with the service above."""

    service: Service

    def serve_unix(self, path: Path) -> None: ...
    def open_gate(self) -> None: ...
    def close(self, grace_s: float = ...) -> None: ...


class BlockingServerFront:
    """The blocking one."""

    def __init__(self, **limits: int) -> None:
        self.service = Service()
        handlers: Mapping[str, Handler | Streaming] = {
            "Echo": lambda call: call.payload,
            "Refuse": self.service.refuse,
            "Crash": self.service.crash,
            "Wait": self._wait,
            "Talk": Streaming(handler=self._talk, client_streams=True, server_streams=True),
            "Deaf": Streaming(handler=self._deaf, client_streams=True, server_streams=False),
        }
        self._server = Server(
            {(SERVICE, name): handler for name, handler in handlers.items()},
            interceptors=[self._outer, self._inner],
            **limits,
        )
        self.serve_unix = self._server.serve_unix

    def open_gate(self) -> None:
        self.service.gate.set()

    def close(self, grace_s: float = 2.0) -> None:
        self._server.close(grace_s)

    def _wait(self, call: Call) -> bytes:
        self.service.waiting.release()
        while not self.service.gate.wait(0.01):
            if call.cancelled.is_set():
                self.service.cancelled.set()
                raise RpcError(Code.CANCELED, "nobody waits")
        return call.payload

    def _talk(self, call: Call, stream: Stream) -> None:
        try:
            for payload in stream:
                stream.send(payload)
        except ConnectionClosed:
            self.service.cancelled.set()
            raise

    def _deaf(self, call: Call, stream: Stream) -> bytes:
        self.service.waiting.release()
        self.service.gate.wait(SOON_S)
        return b"%d" % sum(1 for _ in stream)

    def _outer(self, call: Call, proceed: Callable[[Call], bytes | None]) -> bytes | None:
        self.service.trail.append(f"outer {call.full_method}")
        return proceed(call)

    def _inner(self, call: Call, proceed: Callable[[Call], bytes | None]) -> bytes | None:
        self.service.trail.append("inner")
        return proceed(call)


class AsyncServerFront:
    """The one of asyncio."""

    def __init__(self, **limits: int) -> None:
        self.service = Service()
        self._gate = asyncio.Event()
        self._loop = Loop()
        handlers: Mapping[str, AsyncHandler | AsyncStreaming] = {
            "Echo": self._echo,
            "Refuse": self._quick(self.service.refuse),
            "Crash": self._quick(self.service.crash),
            "Wait": self._wait,
            "Talk": AsyncStreaming(handler=self._talk, client_streams=True, server_streams=True),
            "Deaf": AsyncStreaming(handler=self._deaf, client_streams=True, server_streams=False),
        }
        self._server = AsyncServer(
            {(SERVICE, name): handler for name, handler in handlers.items()},
            interceptors=[self._outer, self._inner],
            **limits,
        )

    def serve_unix(self, path: Path) -> None:
        self._loop.run(self._server.serve_unix(path))

    def open_gate(self) -> None:
        if not self._loop.loop.is_closed():
            self._loop.loop.call_soon_threadsafe(self._gate.set)

    def close(self, grace_s: float = 2.0) -> None:
        if not self._loop.loop.is_closed():
            self._loop.run(self._server.close(grace_s))
            self._loop.close()

    async def _echo(self, call: Call) -> bytes:
        return call.payload

    def _quick(self, handler: Handler) -> AsyncHandler:
        async def answer(call: Call) -> bytes:
            return handler(call)

        return answer

    async def _wait(self, call: Call) -> bytes:
        self.service.waiting.release()
        try:
            await self._gate.wait()
        except asyncio.CancelledError:
            self.service.cancelled.set()
            raise
        return call.payload

    async def _talk(self, call: Call, stream: AsyncStream) -> None:
        try:
            async for payload in stream:
                await stream.send(payload)
        except (ConnectionClosed, asyncio.CancelledError):
            self.service.cancelled.set()
            raise

    async def _deaf(self, call: Call, stream: AsyncStream) -> bytes:
        self.service.waiting.release()
        await self._gate.wait()
        return b"%d" % len([payload async for payload in stream])

    async def _outer(self, call: Call, proceed: Callable[[Call], Any]) -> bytes | None:
        self.service.trail.append(f"outer {call.full_method}")
        return await proceed(call)  # type: ignore[no-any-return]  # what the handler returns

    async def _inner(self, call: Call, proceed: Callable[[Call], Any]) -> bytes | None:
        self.service.trail.append("inner")
        return await proceed(call)  # type: ignore[no-any-return]  # what the handler returns


class StreamFront(Protocol):
    """A client's stream."""

    def send(self, payload: bytes) -> None: ...
    def close_send(self) -> None: ...
    def receive(self) -> bytes | None: ...
    def result(self) -> bytes: ...
    def close(self) -> None: ...


class ClientFront(Protocol):
    """A client."""

    trail: list[str]

    def call(self, method: str, payload: bytes = ..., timeout_s: float | None = ...) -> bytes: ...
    def begin(self, method: str, payload: bytes = ..., timeout_s: float | None = ...) -> Future[bytes]: ...
    def talk(
        self,
        method: str,
        payload: bytes = ...,
        timeout_s: float | None = ...,
        *,
        client: bool = ...,
        server: bool = ...,
    ) -> StreamFront: ...
    def close(self) -> None: ...


class BlockingClientFront:
    """The blocking one."""

    def __init__(self, given: Any) -> None:
        self.trail: list[str] = []
        self._threads = ThreadPoolExecutor(32)
        self._client = Client(given, interceptors=[self._outer, self._inner], on_close=self._closed)

    def call(self, method: str, payload: bytes = b"", timeout_s: float | None = SOON_S) -> bytes:
        return self._client.call(SERVICE, method, payload, timeout_s=timeout_s)

    def begin(self, method: str, payload: bytes = b"", timeout_s: float | None = SOON_S) -> Future[bytes]:
        return self._threads.submit(self.call, method, payload, timeout_s)

    def talk(
        self,
        method: str,
        payload: bytes = b"",
        timeout_s: float | None = SOON_S,
        *,
        client: bool = True,
        server: bool = True,
    ) -> ClientStream:
        return self._client.stream(
            SERVICE, method, payload, client_streams=client, server_streams=server, timeout_s=timeout_s
        )

    def close(self) -> None:
        self._client.close()
        self._threads.shutdown()

    def _outer(self, call: Outgoing, proceed: Callable[[Outgoing], R]) -> R:
        self.trail.append(f"outer {call.full_method}")
        return proceed(call)

    def _inner(self, call: Outgoing, proceed: Callable[[Outgoing], R]) -> R:
        self.trail.append("inner")
        return proceed(call)

    def _closed(self) -> None:
        self.trail.append("closed")


class AsyncClientFront:
    """The one of asyncio."""

    def __init__(self, given: Any) -> None:
        self.trail: list[str] = []
        self._loop = Loop()
        self._client = AsyncClient(given, interceptors=[self._outer, self._inner], on_close=self._closed)
        try:
            self._loop.run(self._client.connect())
        except BaseException:
            self._loop.close()
            raise

    def call(self, method: str, payload: bytes = b"", timeout_s: float | None = SOON_S) -> bytes:
        return self.begin(method, payload, timeout_s).result(2 * SOON_S)

    def begin(self, method: str, payload: bytes = b"", timeout_s: float | None = SOON_S) -> Future[bytes]:
        return self._loop.begin(self._client.call(SERVICE, method, payload, timeout_s=timeout_s))

    def talk(
        self,
        method: str,
        payload: bytes = b"",
        timeout_s: float | None = SOON_S,
        *,
        client: bool = True,
        server: bool = True,
    ) -> AsyncStreamFront:
        opened = self._client.stream(
            SERVICE, method, payload, client_streams=client, server_streams=server, timeout_s=timeout_s
        )
        return AsyncStreamFront(self._loop, self._loop.run(opened))

    def close(self) -> None:
        if not self._loop.loop.is_closed():
            self._loop.run(self._client.close())
            self._loop.close()

    async def _outer(self, call: Outgoing, proceed: Callable[[Outgoing], Any]) -> Any:
        self.trail.append(f"outer {call.full_method}")
        return await proceed(call)

    async def _inner(self, call: Outgoing, proceed: Callable[[Outgoing], Any]) -> Any:
        self.trail.append("inner")
        return await proceed(call)

    def _closed(self) -> None:
        self.trail.append("closed")


class AsyncStreamFront:
    """A stream of the client of asyncio."""

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

    def close(self) -> None:
        self._loop.loop.call_soon_threadsafe(self._stream.close)


SERVERS: Final[Mapping[str, Callable[..., ServerFront]]] = {
    "blocking": BlockingServerFront,
    "asyncio": AsyncServerFront,
}
CLIENTS: Final[Mapping[str, Callable[[Any], ClientFront]]] = {
    "blocking": BlockingClientFront,
    "asyncio": AsyncClientFront,
}
