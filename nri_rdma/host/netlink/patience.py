"""How long a netlink socket waits for the kernel's answer.

Requests are done while they are sent, so that an answer is ready afterwards; without a limit, a kernel that owes one
would stop a worker.
"""

from __future__ import annotations

import socket
import struct
from typing import Final

PATIENCE_S: Final = 5
_TIMEVAL = struct.pack("@ll", PATIENCE_S, 0)


def be_patient(asking: socket.socket) -> None:
    """Have the socket's calls wait for an answer for PATIENCE_S and then raise BlockingIOError. The kernel counts the
    time: with socket.settimeout each call would be two, the first to poll. Raises OSError."""
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL)
