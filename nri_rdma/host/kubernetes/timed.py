"""Makes urllib3 read HTTP answers with a deadline.

A socket's time limit starts anew with each byte, so a server that sends a byte now and then could keep the caller
waiting for ever: in the head, between chunks and in the body. urllib3 sets the socket's limit to the time left for the
call just before it reads. The classes here turn this limit into one deadline for all further reads.
"""

from __future__ import annotations

import io
import time
from http.client import HTTPResponse
from typing import Any  # Any: sockets of several libraries, and a pool manager of a library that is imported late


def use_deadlines(manager: Any) -> None:
    """Make a pool manager of urllib3, which must not have been used yet, read all its answers with a deadline."""
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
    """Reads from a socket until a deadline, then raises TimeoutError. The deadline is set at creation: as many seconds
    from then as the socket's time limit (gettimeout) has."""

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
