"""Finds the runtime's process, and the highest RLIMIT_MEMLOCK that this process may give to a container."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from nri_rdma.model.request import UNLIMITED

_CONNECT_S = 2.0
_CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h


def peer_pid(connection: socket.socket) -> int:
    """Return the process at the other end of the connection; 0 if it is in a PID namespace that we cannot see."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _uid, _gid = struct.unpack("3i", credentials)
    return int(pid)


def served_by(path: Path) -> int:
    """Return the process that listens on a socket; 0 if it is in a PID namespace that we cannot see. Raises OSError if
    no process listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_CONNECT_S)
        connection.connect(str(path))
        return peer_pid(connection)


def memlock_ceiling(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the highest RLIMIT_MEMLOCK in bytes that the process may give to a container.

    A process with CAP_SYS_RESOURCE may give any; another process may give its own hard limit. A process that we cannot
    see is assumed to have the capability; if it does not, the OCI runtime reports an error when the container starts.
    """
    try:
        status = (proc / str(pid) / "status").read_text()
        limits = (proc / str(pid) / "limits").read_text()
    except OSError:
        return UNLIMITED
    return parse_memlock_ceiling(status, limits)


def parse_memlock_ceiling(status: str, limits: str) -> int:
    """Return the highest RLIMIT_MEMLOCK in bytes, from the texts of /proc/PID/status and /proc/PID/limits."""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    if int(effective, 16) >> _CAP_SYS_RESOURCE & 1:
        return UNLIMITED
    line = next((line for line in limits.splitlines() if line.startswith("Max locked memory")), "")
    hard = line.removeprefix("Max locked memory").split()[1:2]
    return int(hard[0]) if hard and hard[0].isdigit() else UNLIMITED
