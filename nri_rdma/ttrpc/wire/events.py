"""The events of a connection. A frame is one event; a frame with a message that also ends its stream is two."""

from __future__ import annotations

from typing import NamedTuple

from ..pb import ttrpc_pb2 as pb
from .frames import REMOTE_CLOSED, REMOTE_OPEN


class Request:
    """A call from the client. Its properties are read from the decoded message on access.

    It is not a dataclass, because filling one would add 1.6 us to the 1.2 us in which a frame becomes an event.
    """

    __slots__ = ("_message", "flags", "stream_id")

    def __init__(self, stream_id: int, message: pb.Request, flags: int) -> None:
        self.stream_id = stream_id
        self.flags = flags
        self._message = message

    @property
    def service(self) -> str:
        """The full name of the service, such as nri.pkg.api.v1alpha1.Plugin."""
        service: str = self._message.service
        return service

    @property
    def method(self) -> str:
        """The name of the method without the service, such as Configure."""
        method: str = self._message.method
        return method

    @property
    def payload(self) -> bytes:
        """The argument of the call as bytes. Each access makes a copy."""
        payload: bytes = self._message.payload
        return payload

    @property
    def timeout_ns(self) -> int:
        """The time in nanoseconds that was left until the caller's deadline when it sent the request. 0 means no
        deadline; a negative number means that the deadline had passed."""
        timeout_ns: int = self._message.timeout_nano
        return timeout_ns

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Pairs of key and value in the order sent, with keys in lower case. Keys may be repeated."""
        return tuple((pair.key.lower(), pair.value) for pair in self._message.metadata)

    def metadata_value(self, key: str) -> str:
        """Return the first value of a metadata key; "" if there is none. `key` must be in lower case; keys in the
        request may have any case."""
        for pair in self._message.metadata:
            if pair.key.lower() == key:
                value: str = pair.value
                return value
        return ""

    @property
    def is_unary(self) -> bool:
        """Return whether the request is a unary call: the caller sends no further messages, and expects one
        Response."""
        return not self.flags & (REMOTE_CLOSED | REMOTE_OPEN)

    @property
    def is_followed(self) -> bool:
        """Return whether the caller will send messages after the request; an End then follows the last one."""
        return self.flags & (REMOTE_CLOSED | REMOTE_OPEN) == REMOTE_OPEN

    def __repr__(self) -> str:
        size = len(self._message.payload)
        return f"Request(stream_id={self.stream_id}, {self.service}/{self.method}, {size} bytes)"


# Tuples, because making a frozen dataclass of four fields takes a microsecond longer.


class Rejected(NamedTuple):
    """A protocol error of the client; the server must write `reply`. There is no call to handle. If the stream was
    open, it has ended."""

    stream_id: int
    reply: bytes


class Response(NamedTuple):
    """The server's answer, which ends the call. Code 0 means success; the payload may be empty."""

    stream_id: int
    code: int
    message: str
    payload: bytes


class Data(NamedTuple):
    """A message on a stream. It may be empty."""

    stream_id: int
    payload: bytes


class End(NamedTuple):
    """The peer sends no more messages on this stream. An End from the server also ends the call."""

    stream_id: int
