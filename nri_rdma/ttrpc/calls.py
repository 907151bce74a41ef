"""The handlers of a server, and their arguments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from .error import RpcError
from .wire import Code


@dataclass(frozen=True, slots=True)
class Call:
    """A handler's argument: one call, its payload not decoded."""

    service: str
    method: str
    payload: bytes
    metadata: tuple[tuple[str, str], ...]
    deadline: float | None
    """time.monotonic() at which the caller stops waiting; None = the caller sets no limit. The server leaves it to the
    handler."""
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False)
    """Set when no caller waits for the answer any more: the caller has gone, or the server closes without grace."""

    @property
    def full_method(self) -> str:
        """The method as gRPC writes it: /service/method."""
        return f"/{self.service}/{self.method}"

    def values(self, key: str) -> tuple[str, ...]:
        """Return the values of a metadata key, whatever its case, in the order sent."""
        key = key.lower()
        return tuple(value for found, value in self.metadata if found == key)


class Stream(Protocol):
    """The messages of one call, as its handler sees them. One thread receives; any may send."""

    def receive(self, timeout_s: float | None = None) -> bytes | None:
        """Return the caller's next message, or None when it will send no more.

        Raises TimeoutError after timeout_s, RpcError with DEADLINE_EXCEEDED at the call's deadline and with the status
        that ended the stream early, and ConnectionClosed when the caller has gone.
        """

    def send(self, payload: bytes) -> None:
        """Send a message to the caller; blocks while it does not read. Raises RpcError for one that is too long and
        for a stream that ended early, ConnectionClosed."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield the caller's messages until the caller sends no more."""


Handler = Callable[[Call], bytes]
"""Answers a unary call."""
StreamHandler = Callable[[Call, Stream], bytes | None]
"""Answers a call of messages: returns the one answer, or None after the last of several."""
Interceptor = Callable[[Call, Callable[[Call], bytes | None]], bytes | None]
"""Wraps a handler: gets the call and the handler (or the next interceptor), returns what that returns, or raises.

It may pass on another Call than it got; the messages of a stream are not in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Streaming:
    """A method with messages: whether the caller sends any number, and whether it gets any number."""

    handler: StreamHandler
    client_streams: bool
    server_streams: bool


class Methods:
    """The methods of a server, behind its interceptors."""

    def __init__(
        self, handlers: Mapping[tuple[str, str], Handler | Streaming], interceptors: Sequence[Interceptor]
    ) -> None:
        self._handlers = dict(handlers)
        self._services = frozenset(service for service, _method in self._handlers)
        self._interceptors = tuple(interceptors)

    def find(self, service: str, method: str) -> Handler | Streaming:
        """Return the method's handler. Raises RpcError with UNIMPLEMENTED."""
        handler = self._handlers.get((service, method))
        if handler is None:
            missing = f"method {method}" if service in self._services else f"service {service}"
            raise RpcError(Code.UNIMPLEMENTED, missing)
        return handler

    def run(self, call: Call, handler: Callable[[Call], bytes | None]) -> bytes | None:
        """Call the handler through all interceptors, the first one outermost, and return its result."""
        return self._through(0, call, handler) if self._interceptors else handler(call)

    def _through(self, position: int, call: Call, handler: Callable[[Call], bytes | None]) -> bytes | None:
        if position == len(self._interceptors):
            return handler(call)
        return self._interceptors[position](call, lambda inner: self._through(position + 1, inner, handler))
