"""A client's call before it is sent, and the interceptors around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A client's call before it is sent. `payload` is the request of a unary call. For a streaming call it is the first
    message, or empty."""

    service: str
    method: str
    payload: bytes
    timeout_s: float | None
    metadata: tuple[tuple[str, str], ...]

    @property
    def full_method(self) -> str:
        """The method in gRPC's notation: /service/method."""
        return f"/{self.service}/{self.method}"


class ClientInterceptor(Protocol):
    """Wraps the client's calls. It may change a call with dataclasses.replace. It gets the answer of a unary call, or
    the opened stream."""

    def __call__(self, call: Outgoing, proceed: Callable[[Outgoing], R], /) -> R:
        """Call proceed(call) and return its result, or raise."""


def through(interceptors: Sequence[ClientInterceptor], call: Outgoing, send: Callable[[Outgoing], R]) -> R:
    """Call `send` through all interceptors, the first one outermost, and return the result."""
    if not interceptors:
        return send(call)
    return interceptors[0](call, lambda inner: through(interceptors[1:], inner, send))
