"""File systems of the kernel that are mounted nowhere: /proc/sys/net for writing, and the sysfs of a namespace.

A container that is not privileged has /proc/sys mounted read-only, and a netdev that returns from a pod would keep the
kernel's default sysctls. A second procfs, which is mounted nowhere and which this process reaches by a descriptor only,
takes the same writes and changes the mounts of nobody. It needs CAP_SYS_ADMIN, which the daemon needs anyway.

A sysfs shows the RDMA devices of the network namespace in which it was mounted, whoever reads it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Final

NET: Final = Path("/proc/sys/net")

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same on every architecture; Linux 5.2
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1  # include/uapi/linux/mount.h
_FSCONFIG_CMD_CREATE = 6
_libc = ctypes.CDLL(None, use_errno=True)


@cache
def writable_net() -> Path | None:
    """Return a path of /proc/sys/net that takes writes, for this process's whole life; None where there is none.

    As /proc/sys/net itself, it has the settings of the network namespace that the calling thread is in.
    """
    try:
        if not os.statvfs(NET).f_flag & os.ST_RDONLY:
            return NET
        mounted = mount_unseen(b"proc")
    except OSError:  # no /proc, a seccomp filter, a security module, no CAP_SYS_ADMIN: who asks says what follows
        return None
    return Path(f"/proc/self/fd/{mounted}/sys/net")


def mount_unseen(kind: bytes) -> int:
    """Return the descriptor of a file system of that kind (``proc``, ``sysfs``) that no mount namespace has. A sysfs is
    that of the calling thread's network namespace. Raises OSError."""
    opened = _call(_FSOPEN, kind, _FSOPEN_CLOEXEC)
    try:
        _call(_FSCONFIG, opened, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(_FSMOUNT, opened, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(opened)


def _call(number: int, *arguments: bytes | int | None) -> int:
    result: int = _libc.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
