"""The protocol between two programs that measure RDMA between their devices: JSON objects over TCP, one per line.

There is no authentication. Received values are checked, and the peer can only ask for a queue pair and write into
memory that was registered for this measurement.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from typing import Any  # Any: JSON

PROTOCOL, VERSION = "nri-rdma verify", 1
MOST_LINE_BYTES = 1 << 16
_MOST_MEASURED = 10**12
_AGAIN_S = 0.5


class ConversationError(Exception):
    """The error if the peer cannot be reached, is too slow, or sent something invalid."""


class Conversation:
    """Sends and receives the lines of one TCP connection. Every call ends within `within_s` seconds."""

    def __init__(self, connection: socket.socket, within_s: float) -> None:
        self._connection = connection
        self._within_s = within_s
        self._rest = b""

    def tell(self, **said: object) -> None:
        """Send the keyword arguments as one JSON object. Raises ConversationError if the connection fails."""
        self._connection.settimeout(self._within_s)
        try:
            self._connection.sendall(json.dumps(said).encode() + b"\n")
        except OSError as error:
            raise ConversationError(f"nothing can be sent to the other side: {_words(error)}") from error

    def hear(self) -> dict[str, Any]:
        """Return the next JSON object from the peer. Raises ConversationError if none comes in time, it is invalid, or
        it reports an error of the peer (the key `error`)."""
        until = time.monotonic() + self._within_s
        while b"\n" not in self._rest:
            self._rest += self._more(until)
            if len(self._rest) > MOST_LINE_BYTES:
                raise ConversationError(f"the other side sent a line of more than {MOST_LINE_BYTES} bytes")
        line, _, self._rest = self._rest.partition(b"\n")
        try:
            told = json.loads(line)
        except ValueError as error:
            raise ConversationError(f"the other side sent invalid JSON: {error}") from error
        except RecursionError:
            raise ConversationError("the other side sent invalid JSON: it is nested too deeply") from None
        if not isinstance(told, dict):
            raise ConversationError("the other side sent JSON that is no object")
        if "error" in told:
            raise ConversationError(f"the other side says: {text(told, 'error', 500)}")
        return told

    def _more(self, until: float) -> bytes:
        self._connection.settimeout(max(0.001, until - time.monotonic()))
        try:
            found = self._connection.recv(MOST_LINE_BYTES)
        except OSError as error:
            raise ConversationError(f"the other side does not answer: {_words(error)}") from error
        if not found:
            raise ConversationError("the other side has ended the connection")
        return found


def connected(host: str, port: int, within_s: float) -> socket.socket:
    """Return a connection to a host. Tries again until `within_s` seconds are over, because the host may not listen
    yet. Then raises ConversationError."""
    until = time.monotonic() + within_s
    while True:
        try:
            return socket.create_connection((host, port), timeout=max(0.1, until - time.monotonic()))
        except OSError as error:
            if time.monotonic() + _AGAIN_S > until:
                what = f"{host}, TCP port {port}, does not answer within {within_s:g} s: {_words(error)}"
                raise ConversationError(what) from error
        time.sleep(_AGAIN_S)


def hello(devices: object) -> dict[str, object]:
    """Return the object with which each side opens the conversation: the protocol, its version, and the side's own
    devices."""
    return {"protocol": PROTOCOL, "version": VERSION, "devices": devices}


def check_hello(told: Mapping[str, Any]) -> None:
    """Check the first object that the peer sent. Raises ConversationError if the peer is another program or has another
    protocol version."""
    if told.get("protocol") != PROTOCOL:
        raise ConversationError("the other side is not nri-rdma verify")
    if told.get("version") != VERSION:
        raise ConversationError(
            f"the other side speaks version {told.get('version')!r}, this one {VERSION}: use the same nri-rdma on both"
        )


def number(told: Mapping[str, Any], key: str, least: int, most: int) -> int:
    """Return the integer under a key of the received object `told`. Raises ConversationError if it is not an integer
    from `least` to `most`."""
    value = told.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ConversationError(f"the other side sent {key} {value!r}, which is not a number from {least} to {most}")
    return value


def real(told: Mapping[str, Any], key: str) -> float:
    """Return the measured number under a key of the received object `told`. Raises ConversationError if it is negative
    or not a number."""
    value = told.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= _MOST_MEASURED:
        raise ConversationError(f"the other side sent {key} {value!r}, which is not a measured number")
    return float(value)


def text(told: Mapping[str, Any], key: str, most: int = 64) -> str:
    """Return the text under a key of the received object `told`. Raises ConversationError if it is not a text or has
    more than `most` characters."""
    value = told.get(key)
    if not isinstance(value, str) or len(value) > most:
        raise ConversationError(f"the other side sent no text of at most {most} characters as {key}")
    return value


def part(told: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object under a key of the received object `told`. Raises ConversationError if there is none."""
    value = told.get(key)
    if not isinstance(value, dict):
        raise ConversationError(f"the other side sent no {key}")
    return value


def _words(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
