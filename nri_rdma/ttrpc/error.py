"""The two ways in which a call fails."""

from __future__ import annotations

from nri_rdma.wire.ttrpc import Code


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
