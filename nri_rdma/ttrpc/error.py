"""The two errors of a call, and the status of a handler's exception."""

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
"""The text with UNKNOWN for a handler that returned nothing: Go's words."""

_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (CancelledError, Code.CANCELED),
    (TimeoutError, Code.DEADLINE_EXCEEDED),
    (FileNotFoundError, Code.NOT_FOUND),
    (FileExistsError, Code.ALREADY_EXISTS),
    (PermissionError, Code.PERMISSION_DENIED),
    (BrokenPipeError, Code.FAILED_PRECONDITION),
    (EOFError, Code.OUT_OF_RANGE),
)
"""The codes of Python's exceptions that match errors to which Go's server gives a code of their own; all others are
UNKNOWN."""


def status_of(error: Exception) -> RpcError:
    """Return the status of a handler's exception: its own status, or the code and text of any other exception."""
    if isinstance(error, RpcError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return RpcError(Code.INVALID_ARGUMENT, text)
    return RpcError(next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN), text)
