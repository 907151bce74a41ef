"""Calls and handlers with protobuf messages instead of bytes, from a service's descriptor. No code is generated.

`stub(client, descriptor)` returns an object with the service's methods; `handlers(descriptor, implementation)` returns
the handlers for a Server. The descriptor says who sends how many messages:

| client sends | server sends | a call of the stub's method M         | the implementation's method M                 |
|--------------|--------------|---------------------------------------|-----------------------------------------------|
| one          | one          | `M(request, timeout_s=)`: reply       | `M(request, call)` returns the reply          |
| one          | any number   | `M(request, timeout_s=)`: TypedStream | `M(request, call)` returns or yields replies  |
| any number   | one          | `M(timeout_s=)`: TypedStream          | `M(requests, call)` returns the reply         |
| any number   | any number   | `M(timeout_s=)`: TypedStream          | `M(requests, call)` returns or yields replies |

If a caller passes a message of the wrong type, TypeError is raised before anything is sent, because the bytes would
often decode to something else. If an implementation returns a message of the wrong type, its call fails with INTERNAL,
and the server logs the types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self  # Any: the types of a method's messages are known only at run time, from the descriptor

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from .calls import Call, Handler, Stream, Streaming
from .client import Client
from .clientstream import ClientStream
from .method import Method


class Stub:
    """An object with one method for each method of the service. Access to any other name raises AttributeError."""

    def __init__(self, client: Client, service: ServiceDescriptor) -> None:
        self._client = client
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        descriptor = self._service.methods_by_name.get(name)
        if descriptor is None:
            raise AttributeError(f"service {self._service.full_name} has no method {name}")
        method = Method(descriptor)
        if method.client_streams:
            return partial(self._stream, method, None)
        return partial(self._stream if method.server_streams else self._call, method)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._service.methods_by_name})

    def _call(
        self,
        method: Method,
        request: Message,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> Message:
        payload = method.encode_request(request)
        answer = self._client.call(method.service, method.name, payload, timeout_s=timeout_s, metadata=metadata)
        return method.decode_reply(answer)

    def _stream(
        self,
        method: Method,
        request: Message | None,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> TypedStream:
        stream = self._client.stream(
            method.service,
            method.name,
            b"" if method.client_streams else method.encode_request(request),
            client_streams=method.client_streams,
            server_streams=method.server_streams,
            timeout_s=timeout_s,
            metadata=metadata,
        )
        return TypedStream(stream, method)


class TypedStream:
    """A ClientStream (clientstream.py) that encodes and decodes protobuf messages. If received bytes cannot be decoded,
    its methods raise RpcError with INTERNAL."""

    def __init__(self, stream: ClientStream, method: Method) -> None:
        self._stream = stream
        self._method = method

    def send(self, message: Message) -> None:
        """Send a message; see ClientStream.send(). Raises TypeError for a message of the wrong type; the stream stays
        usable."""
        self._stream.send(self._method.encode_request(message))

    def close_send(self) -> None:
        self._stream.close_send()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        payload = self._stream.receive(timeout_s)
        return None if payload is None else self._method.decode_reply(payload)

    def __iter__(self) -> Iterator[Message]:
        for payload in self._stream:
            yield self._method.decode_reply(payload)

    def result(self, timeout_s: float | None = None) -> Message:
        return self._method.decode_reply(self._stream.result(timeout_s))

    def close(self) -> None:
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def stub(client: Client, service: ServiceDescriptor) -> Stub:
    """Return an object with the service's methods, which call the client's server."""
    return Stub(client, service)


def handlers(service: ServiceDescriptor, implementation: object) -> dict[tuple[str, str], Handler | Streaming]:
    """Return the handlers of those methods of the service that `implementation` has."""
    return {
        (service.full_name, it.name): _handler(Method(it), getattr(implementation, it.name))
        for it in service.methods
        if hasattr(implementation, it.name)
    }


def _handler(method: Method, function: Callable[..., Any]) -> Handler | Streaming:
    if method.is_unary:
        return partial(_answer, method, function)
    return Streaming(
        handler=partial(_stream, method, function),
        client_streams=method.client_streams,
        server_streams=method.server_streams,
    )


def _answer(method: Method, function: Callable[..., Any], call: Call) -> bytes:
    return method.encode_reply(function(method.decode_request(call.payload), call))


def _stream(method: Method, function: Callable[..., Any], call: Call, stream: Stream) -> bytes | None:
    requests = (method.decode_request(payload) for payload in stream)
    result = function(requests if method.client_streams else next(requests), call)
    if not method.server_streams:
        return method.encode_reply(result)
    for reply in result:
        stream.send(method.encode_reply(reply))
    return None
