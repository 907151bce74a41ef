"""The two exceptions of a call, and the status that a caller gets for a handler's exception."""

from __future__ import annotations

import errno
from concurrent.futures import CancelledError
from typing import Final

from .wire import Code


class RpcError(Exception):
    """A status other than OK. A call raises it; a handler raises it to choose the status that the caller gets."""

    def __init__(self, code: int, message: str) -> None:
        self.code: int = Code(code) if code in Code.__members__.values() else code
        self.message = message
        super().__init__(code, message)

    def __str__(self) -> str:
        name = self.code.name if isinstance(self.code, Code) else f"code {self.code}"
        return f"{name}: {self.message}"


class ConnectionClosed(ConnectionError):  # noqa: N818 - the protocol's word
    """The connection ended during the call. It is unknown whether the server handled the call."""


NIL_ANSWER: Final = "ttrpc: marshal called with nil"
"""The text of the status UNKNOWN if a handler returned nothing. The Go server uses this text."""

_CODES: tuple[tuple[type[Exception], Code], ...] = (
    (CancelledError, Code.CANCELED),
    (TimeoutError, Code.DEADLINE_EXCEEDED),
    (FileNotFoundError, Code.NOT_FOUND),
    (FileExistsError, Code.ALREADY_EXISTS),
    (PermissionError, Code.PERMISSION_DENIED),
    (BrokenPipeError, Code.FAILED_PRECONDITION),
    (EOFError, Code.OUT_OF_RANGE),
)
"""The status codes of Python exceptions. The exceptions are those whose Go counterparts have a code of their own in the
Go server; every other exception is UNKNOWN."""


def status_of(error: Exception) -> RpcError:
    """Return the status that a caller gets for a handler's exception. An RpcError is returned unchanged; for another
    exception the status has a code and the exception's text."""
    if isinstance(error, RpcError):
        return error
    text = str(error) or type(error).__name__
    if isinstance(error, OSError) and error.errno == errno.EINVAL:
        return RpcError(Code.INVALID_ARGUMENT, text)
    return RpcError(next((code for kind, code in _CODES if isinstance(error, kind)), Code.UNKNOWN), text)
