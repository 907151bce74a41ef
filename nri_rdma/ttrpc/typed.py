"""Services with their messages' types, from a descriptor; no code is generated.

`stub(client, descriptor)` has a method for each of the service's, `handlers(descriptor, implementation)` is what a
Server takes. The kind of each method is the descriptor's:

| client streams | server streams | the stub's method                  | the implementation's                         |
|----------------|----------------|------------------------------------|----------------------------------------------|
| no             | no             | `stub.M(request, timeout_s=)` reply | `M(request, call)` returns the reply         |
| no             | yes            | the same, a TypedStream            | `M(request, call)` returns or yields replies |
| yes            | no             | `stub.M(timeout_s=)` TypedStream   | `M(requests, call)` returns the reply        |
| yes            | yes            | the same                           | `M(requests, call)` returns or yields replies |

A message of another type than the method's is refused with TypeError, before anything is sent: the bytes would often
decode, to something else. An implementation that returns one fails its call with INTERNAL and the same text, and the
server logs one line.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Self  # Any: what a method takes and returns is the descriptor's to say, when it runs

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message

from .calls import Call, Handler, Stream, Streaming
from .client import Client
from .clientstream import ClientStream
from .error import NIL_ANSWER, RpcError
from .wire import Code

MessageType = type[Message]

log = logging.getLogger(__name__)


class Stub:
    """Calls the methods of one service by their names; AttributeError for one that it does not have."""

    def __init__(self, client: Client, service: ServiceDescriptor) -> None:
        self._client = client
        self._service = service

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = self._service.methods_by_name.get(name)
        if method is None:
            raise AttributeError(f"service {self._service.full_name} has no method {name}")
        if method.client_streaming:
            return partial(self._stream, method, None)
        return partial(self._stream if method.server_streaming else self._call, method)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._service.methods_by_name})

    def _call(
        self,
        method: MethodDescriptor,
        request: Message,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> Message:
        payload = _request(method, request)
        service = self._service.full_name
        answer = self._client.call(service, method.name, payload, timeout_s=timeout_s, metadata=metadata)
        return _decoded(_reply_type(method), answer)

    def _stream(
        self,
        method: MethodDescriptor,
        request: Message | None,
        *,
        timeout_s: float | None,
        metadata: Iterable[tuple[str, str]] = (),
    ) -> TypedStream:
        stream = self._client.stream(
            self._service.full_name,
            method.name,
            b"" if method.client_streaming else _request(method, request),
            client_streams=method.client_streaming,
            server_streams=method.server_streaming,
            timeout_s=timeout_s,
            metadata=metadata,
        )
        return TypedStream(stream, method)


class TypedStream:
    """A ClientStream (clientstream.py) whose messages are decoded; RpcError with INTERNAL for bytes that do not
    decode."""

    def __init__(self, stream: ClientStream, method: MethodDescriptor) -> None:
        self._stream = stream
        self._method = method
        self._reply_type = _reply_type(method)

    def send(self, message: Message) -> None:
        """Send a message as ClientStream does. Raises TypeError for a message of another type; the stream goes on."""
        self._stream.send(_request(self._method, message))

    def close_send(self) -> None:
        self._stream.close_send()

    def receive(self, timeout_s: float | None = None) -> Message | None:
        payload = self._stream.receive(timeout_s)
        return None if payload is None else _decoded(self._reply_type, payload)

    def __iter__(self) -> Iterator[Message]:
        for payload in self._stream:
            yield _decoded(self._reply_type, payload)

    def result(self, timeout_s: float | None = None) -> Message:
        return _decoded(self._reply_type, self._stream.result(timeout_s))

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
    """Return the handlers of those methods of the service that the implementation has."""
    return {
        (service.full_name, method.name): _handler(method, getattr(implementation, method.name))
        for method in service.methods
        if hasattr(implementation, method.name)
    }


def _handler(method: MethodDescriptor, function: Callable[..., Any]) -> Handler | Streaming:
    if not method.client_streaming and not method.server_streaming:
        return partial(_answer, method, function)
    return Streaming(
        handler=partial(_stream, method, function),
        client_streams=method.client_streaming,
        server_streams=method.server_streaming,
    )


def _answer(method: MethodDescriptor, function: Callable[..., Any], call: Call) -> bytes:
    return _reply(method, function(_decoded(_request_type(method), call.payload), call))


def _stream(method: MethodDescriptor, function: Callable[..., Any], call: Call, stream: Stream) -> bytes | None:
    requests = (_decoded(_request_type(method), payload) for payload in stream)
    result = function(requests if method.client_streaming else next(requests), call)
    if not method.server_streaming:
        return _reply(method, result)
    for reply in result:
        stream.send(_reply(method, reply))
    return None


def _request_type(method: MethodDescriptor) -> MessageType:
    return message_factory.GetMessageClass(method.input_type)


def _reply_type(method: MethodDescriptor) -> MessageType:
    return message_factory.GetMessageClass(method.output_type)


def _decoded(kind: MessageType, payload: bytes) -> Message:
    try:
        return kind.FromString(payload)
    except DecodeError as exc:
        raise RpcError(Code.INTERNAL, f"ttrpc: error unmarshalling payload: {exc}") from exc


def _request(method: MethodDescriptor, request: Message | None) -> bytes:
    return _encoded(method, request, "takes", method.input_type)


def _reply(method: MethodDescriptor, reply: Message | None) -> bytes:
    if reply is None:
        raise RpcError(Code.UNKNOWN, NIL_ANSWER)
    try:
        return _encoded(method, reply, "returns", method.output_type)
    except TypeError as exc:
        log.error("a handler returned a value of the wrong type", extra={"error": str(exc)})  # noqa: TRY400 - no trace
        raise RpcError(Code.INTERNAL, str(exc)) from exc


def _encoded(method: MethodDescriptor, message: Message | None, verb: str, expected: Descriptor) -> bytes:
    """Return the message's bytes. Raises TypeError for another type: by its name, for each pool has its own class."""
    if isinstance(message, Message) and message.DESCRIPTOR.full_name == expected.full_name:
        return message.SerializeToString()
    found = message.DESCRIPTOR.full_name if isinstance(message, Message) else type(message).__name__
    called = f"/{method.containing_service.full_name}/{method.name}"
    raise TypeError(f"{called} {verb} {expected.full_name}, not {found}")
