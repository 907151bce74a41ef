"""HTTP answers with a deadline: each of their bytes comes before it, or none more.

A socket's time limit begins anew with each byte, so that a server that sends one now and then keeps its caller for as
long as it likes: in the head, between chunks, and in the body. urllib3 sets the limit to what is left of a call's time
right before it reads; here that is the deadline of all reads from then on.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from typing import Any  # Any: sockets of several libraries, and a pool manager of a library that is imported late


def use_deadlines(manager: Any) -> None:
    """Have a pool manager of urllib3 read all answers so. It may not have been used."""
    manager.pool_classes_by_scheme = {
        scheme: _derived(pool, ConnectionCls=_derived(pool.ConnectionCls, response_class=_TimedResponse))
        for scheme, pool in manager.pool_classes_by_scheme.items()
    }


def _derived(base: type, **attributes: object) -> type:
    return type(base.__name__, (base,), attributes)


class _TimedResponse(HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **named: Any) -> None:
        super().__init__(sock, *args, **named)
        self.fp: Any = io.BufferedReader(_TimedReader(self.fp.detach(), sock))


class _TimedReader(io.RawIOBase):
    """Reads from a socket for at most the time limit that it has now."""

    def __init__(self, raw: io.RawIOBase, sock: Any) -> None:
        self._raw = raw
        self._sock = sock
        self._until = time.monotonic() + sock.gettimeout()

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time of the call is over")
        self._sock.settimeout(left_s)
        return self._raw.readinto(into)

    def close(self) -> None:
        self._raw.close()
        super().close()
