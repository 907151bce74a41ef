"""The types of a server's methods: what a handler gets and returns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from .error import RpcError
from .wire import Code


@dataclass(frozen=True, slots=True)
class Call:
    """The argument of a handler: one call, with its payload as bytes."""

    service: str
    method: str
    payload: bytes
    metadata: tuple[tuple[str, str], ...]
    deadline: float | None
    """When the caller stops waiting, in seconds of `time.monotonic`; None: never. The server does not enforce the
    deadline; the handler may."""
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when nobody waits for the answer any more: the caller has disconnected, or the server is closing at once. A
    blocking server with max_calls=1 does not see a disconnection while it runs a unary call."""

    @property
    def full_method(self) -> str:
        """The method in gRPC's notation: /service/method."""
        return f"/{self.service}/{self.method}"

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values of a metadata key, in the order sent. The case of the key does not matter."""
        key = key.lower()
        return tuple(value for found, value in self.metadata if found == key)


class Stream(Protocol):
    """The messages of a streaming call, as its handler uses them. One thread may receive; any thread may send."""

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the caller's next message; None after the last one.

        Raises TimeoutError after timeout_s seconds, RpcError with DEADLINE_EXCEEDED at the call's deadline, RpcError
        with the stream's status if the stream ended early, and ConnectionClosed if the caller has disconnected.
        """

    def send(self, payload: bytes) -> None:
        """Send a message to the caller. Blocks while the caller does not read.

        Raises RpcError if the message is too long or the stream ended early, and ConnectionClosed if the caller has
        disconnected.
        """

    def __iter__(self) -> Iterator[bytes]:
        """Yield the caller's messages; ends after the last one."""


Handler = Callable[[Call], bytes]
"""A function that answers a unary call: returns the payload of the answer, or raises."""
StreamHandler = Callable[[Call, Stream], bytes | None]
"""A function that answers a streaming call. Returns the only answer, or None if it sent its messages with
`Stream.send`."""
Interceptor = Callable[[Call, Callable[[Call], bytes | None]], bytes | None]
"""A function that wraps handlers. It gets the call and the next handler, and returns the result of that handler, or
raises.

It may pass on a changed Call. It does not see the messages of a stream.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """A streaming method of a server. `client_streams` and `server_streams` say whether client and server may send any
    number of messages."""

    handler: StreamHandler
    client_streams: bool
    server_streams: bool


Method = TypeVar("Method")
Result = TypeVar("Result")


class Methods(Generic[Method, Result]):
    """The handlers of a server's methods, and the interceptors that wrap each call. A handler returns a Result: what is
    answered, or in asyncio an awaitable of it."""

    def __init__(
        self,
        handlers: Mapping[tuple[str, str], Method],
        interceptors: Sequence[Callable[[Call, Callable[[Call], Result]], Result]],
    ) -> None:
        self._handlers = dict(handlers)
        self._services = frozenset(service for service, _method in self._handlers)
        self._interceptors = tuple(interceptors)

    def find(self, service: str, method: str) -> Method:
        """Return the method's handler. Raises RpcError with UNIMPLEMENTED if there is none."""
        handler = self._handlers.get((service, method))
        if handler is None:
            missing = f"method {method}" if service in self._services else f"service {service}"
            raise RpcError(Code.UNIMPLEMENTED, missing)
        return handler

    def run(self, call: Call, handler: Callable[[Call], Result]) -> Result:
        """Call the handler through all interceptors, the first one outermost, and return the result."""
        return self._through(0, call, handler) if self._interceptors else handler(call)

    def _through(self, position: int, call: Call, handler: Callable[[Call], Result]) -> Result:
        if position == len(self._interceptors):
            return handler(call)
        return self._interceptors[position](call, lambda inner: self._through(position + 1, inner, handler))
