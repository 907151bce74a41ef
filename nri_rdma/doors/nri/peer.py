"""The runtime's process: what it may do for a container."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from nri_rdma.model.request import UNLIMITED

_CAP_SYS_RESOURCE = 24  # include/uapi/linux/capability.h


def peer_pid(connection: socket.socket) -> int:
    """The process at the other end; 0 when it lives in a pid namespace that we do not see."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, _uid, _gid = struct.unpack("3i", credentials)
    return int(pid)


def memlock_ceiling(pid: int, proc: Path = Path("/proc")) -> int:
    """The highest RLIMIT_MEMLOCK in bytes that this process may give a container.

    With CAP_SYS_RESOURCE that is no limit; without, its own hard limit. A process that we cannot see is taken to have
    the capability, as runtimes do: if it has not, the OCI runtime says so when the container starts.
    """
    try:
        status = (proc / str(pid) / "status").read_text()
        limits = (proc / str(pid) / "limits").read_text()
    except OSError:
        return UNLIMITED
    return parse_memlock_ceiling(status, limits)


def parse_memlock_ceiling(status: str, limits: str) -> int:
    """The same from the texts of /proc/PID/status and /proc/PID/limits."""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    if int(effective, 16) >> _CAP_SYS_RESOURCE & 1:
        return UNLIMITED
    line = next((line for line in limits.splitlines() if line.startswith("Max locked memory")), "")
    hard = line.removeprefix("Max locked memory").split()[1:2]
    return int(hard[0]) if hard and hard[0].isdigit() else UNLIMITED
