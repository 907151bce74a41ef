"""Calls and handlers with protobuf messages instead of bytes, for asyncio, from a service's descriptor. No code is
generated.

`stub(client, descriptor)` returns an object with a coroutine for each of the service's methods; `handlers(descriptor,
implementation)` returns the handlers for an AsyncServer. The descriptor says who sends how many messages:

| client sends | server sends | `await` of the stub's method M             | the implementation's `async def M`    |
|--------------|--------------|--------------------------------------------|---------------------------------------|
| one          | one          | `M(request, timeout_s=)`: reply            | `M(request, call)` returns the reply  |
| one          | any number   | `M(request, timeout_s=)`: AsyncTypedStream | `M(request, call)` yields replies     |
| any number   | one          | `M(timeout_s=)`: AsyncTypedStream          | `M(requests, call)` returns the reply |
| any number   | any number   | `M(timeout_s=)`: AsyncTypedStream          | `M(requests, call)` yields replies    |

`requests` is an asynchronous iterator. A message of the wrong type raises TypeError before anything is sent.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import Any, Self  # Any: the types of a method's messages are known only at run time, from the descriptor

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from ..calls import Call
from ..method import Method
from .calls import AsyncHandler, AsyncStream, AsyncStreaming
from .client import AsyncClient
from .clientstream import AsyncClientStream


class AsyncStub:
    """An object with one coroutine for each method of the service. Access to any other name raises AttributeError."""

    def __init__(self, client: AsyncClient, service: ServiceDescriptor) -> None:
        self._client = client
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        descriptor = self._service.methods_by_name.get(name)
        if descriptor is None:
            raise AttributeError(f"service {self._service.full_name} has no method {name}")
        method = Method(descriptor)
        if method.client_streams:
            return partial(self._stream, method, None)
        return partial(self._stream if method.server_streams else self._call, method)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._service.methods_by_name})

    async def _call(
        self,
        method: Method,
        request: Message,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> Message:
        payload = method.encode_request(request)
        answer = await self._client.call(method.service, method.name, payload, timeout_s=timeout_s, metadata=metadata)
        return method.decode_reply(answer)

    async def _stream(
        self,
        method: Method,
        request: Message | None,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> AsyncTypedStream:
        stream = await self._client.stream(
            method.service,
            method.name,
            b"" if method.client_streams else method.encode_request(request),
            client_streams=method.client_streams,
            server_streams=method.server_streams,
            timeout_s=timeout_s,
            metadata=metadata,
        )
        return AsyncTypedStream(stream, method)


class AsyncTypedStream:
    """An AsyncClientStream (clientstream.py) that encodes and decodes protobuf messages. If received bytes cannot be
    decoded, its methods raise RpcError with INTERNAL."""

    def __init__(self, stream: AsyncClientStream, method: Method) -> None:
        self._stream = stream
        self._method = method

    async def send(self, message: Message) -> None:
        """Send a message; see AsyncClientStream.send(). Raises TypeError for a message of the wrong type; the stream
        stays usable."""
        await self._stream.send(self._method.encode_request(message))

    async def close_send(self) -> None:
        await self._stream.close_send()

    async def receive(self) -> Message | None:
        payload = await self._stream.receive()
        return None if payload is None else self._method.decode_reply(payload)

    async def __aiter__(self) -> AsyncIterator[Message]:
        async for payload in self._stream:
            yield self._method.decode_reply(payload)

    async def result(self) -> Message:
        return self._method.decode_reply(await self._stream.result())

    def close(self) -> None:
        self._stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def stub(client: AsyncClient, service: ServiceDescriptor) -> AsyncStub:
    """Return an object with the service's methods, which call the client's server."""
    return AsyncStub(client, service)


def handlers(
    service: ServiceDescriptor, implementation: object
) -> dict[tuple[str, str], AsyncHandler | AsyncStreaming]:
    """Return the handlers of those methods of the service that `implementation` has."""
    return {
        (service.full_name, it.name): _handler(Method(it), getattr(implementation, it.name))
        for it in service.methods
        if hasattr(implementation, it.name)
    }


def _handler(method: Method, function: Callable[..., Any]) -> AsyncHandler | AsyncStreaming:
    if method.is_unary:
        return partial(_answer, method, function)
    return AsyncStreaming(
        handler=partial(_exchange, method, function),
        client_streams=method.client_streams,
        server_streams=method.server_streams,
    )


async def _answer(method: Method, function: Callable[..., Any], call: Call) -> bytes:
    return method.encode_reply(await function(method.decode_request(call.payload), call))


async def _exchange(method: Method, function: Callable[..., Any], call: Call, stream: AsyncStream) -> bytes | None:
    async with aclosing(_requests(method, stream)) as requests:
        result = function(requests if method.client_streams else await anext(requests), call)
        if not method.server_streams:
            return method.encode_reply(await result)
        async with aclosing(result) as replies:
            async for reply in replies:
                await stream.send(method.encode_reply(reply))
    return None


async def _requests(method: Method, stream: AsyncStream) -> AsyncGenerator[Message]:
    async for payload in stream:
        yield method.decode_request(payload)
