"""Limits how long a netlink socket waits for the kernel's answer.

The kernel handles a request while the request is being sent, so the answer is ready at once. Without a limit, a kernel
that fails to answer would block a worker for ever.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

PATIENCE_S: Final = 5
_TIMEVAL = struct.pack("@ll", PATIENCE_S, 0)


def be_patient(asking: socket.socket) -> None:
    """Let the socket's calls wait for at most PATIENCE_S seconds and then raise BlockingIOError. Raises OSError if the
    limit cannot be set.

    The kernel measures the time, because socket.settimeout would double the system calls: a poll before each.
    """
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
