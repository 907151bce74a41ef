"""Mounts kernel file systems privately: a procfs with a writable /proc/sys/net, and the sysfs of a network namespace.

A container that is not privileged has /proc/sys mounted read-only, so a netdev that returns from a pod would keep the
kernel's default sysctls. A second procfs accepts these writes. It is not attached to any mount point: only this process
reaches it, by a descriptor, and no other mount changes. Mounting needs CAP_SYS_ADMIN, which the daemon needs anyway.

A sysfs shows the RDMA devices of the network namespace in which it was mounted, whichever process reads it.
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
    """Return a path of /proc/sys/net that accepts writes, valid until this process ends; None if no path accepts
    writes.

    The path shows the settings of the network namespace that the calling thread is in.
    """
    try:
        if not os.statvfs(NET).f_flag & os.ST_RDONLY:
            return NET
        mounted = mount_unseen(b"proc")
    except OSError:  # no /proc, a seccomp filter, a security module, or no CAP_SYS_ADMIN: the caller reports it
        return None
    return Path(f"/proc/self/fd/{mounted}/sys/net")


def mount_unseen(kind: bytes) -> int:
    """Mount a file system of this kind (``proc``, ``sysfs``) without a mount point, and return its descriptor. Raises
    OSError if the kernel refuses.

    A sysfs shows the calling thread's network namespace.
    """
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
