"""The two ways in which a call fails, and what a handler's exception is to its caller."""

from __future__ import annotations

import errno
from concurrent.futures import CancelledError
from typing import Final

from .wire import Code


class RpcError(Exception):
    """A status other than OK: raised by calls, and by handlers to choose what the caller sees."""

    def __init__(self, code: int, message: str) -> None:
        self.code: int = Code(code) if code in Code.__members__.values() else code
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        name = self.code.name if isinstance(self.code, Code) else f"code {self.code}"
        return f"{name}: {self.message}"


class ConnectionClosed(ConnectionError):  # noqa: N818 - the protocol's word
    """The connection is gone, and the call with it; whether the peer handled the call is unknown."""


NIL_ANSWER: Final = "ttrpc: marshal called with nil"
"""What a caller is told, with UNKNOWN, of a handler that returned nothing: Go's words."""

_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (CancelledError, Code.CANCELED),
    (TimeoutError, Code.DEADLINE_EXCEEDED),
    (FileNotFoundError, Code.NOT_FOUND),
    (FileExistsError, Code.ALREADY_EXISTS),
    (PermissionError, Code.PERMISSION_DENIED),
    (BrokenPipeError, Code.FAILED_PRECONDITION),
    (EOFError, Code.OUT_OF_RANGE),
)
"""Python's names for the errors to which Go's server gives a code of their own; the rest is UNKNOWN."""


def status_of(error: Exception) -> RpcError:
    """What the caller is told when a handler raises: its own status, or the code and text of any other exception."""
    if isinstance(error, RpcError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return RpcError(Code.INVALID_ARGUMENT, text)
    return RpcError(next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN), text)
