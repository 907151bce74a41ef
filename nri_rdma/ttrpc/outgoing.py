"""A call before it is sent, and the interceptors around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A caller's request. `payload` is a stream's first message, or empty."""

    service: str
    method: str
    payload: bytes
    timeout_s: float | None
    metadata: tuple[tuple[str, str], ...]

    @property
    def full_method(self) -> str:
        """The method as gRPC writes it: /service/method."""
        return f"/{self.service}/{self.method}"


class ClientInterceptor(Protocol):
    """Wraps the sending of calls: may change one (dataclasses.replace), and sees it answered or a stream opened."""

    def __call__(self, call: Outgoing, proceed: Callable[[Outgoing], R], /) -> R:
        """Return what proceed(call) returns, or raise."""


def through(interceptors: Sequence[ClientInterceptor], call: Outgoing, send: Callable[[Outgoing], R]) -> R:
    """Call send through all interceptors, the first one outermost, and return its result."""
    if not interceptors:
        return send(call)
    return interceptors[0](call, lambda inner: through(interceptors[1:], inner, send))
