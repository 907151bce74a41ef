"""Lets a thread be in another network namespace for a moment.

The system call setns changes only the calling thread. In the other namespace, a thread must start no thread or process,
which would stay there, and must not enter a second namespace.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from nri_rdma.attach.port import KernelError, NamespaceError

log = logging.getLogger(__name__)

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def enter(fd: int) -> None:
    """Move the calling thread into the namespace of a descriptor, and leave it there. Raises NamespaceError if the
    kernel refuses."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NamespaceError("enter the network namespace", ctypes.get_errno())


class _Whereabouts(threading.local):
    """Records for each thread whether it is in another network namespace than the process. Each thread sees its own
    value."""

    is_away = False
    """True while the thread is in another namespace than the process, or is entering or leaving it."""


_calling = _Whereabouts()


@contextmanager
def visiting(fd: int) -> Iterator[None]:
    """Let the calling thread be in the namespace of a descriptor while the block runs. Raises NamespaceError if the
    kernel refuses, and KernelError if the thread is in another namespace already.

    If the kernel, short of memory, cannot move the thread back, the process ends: the thread would otherwise act in the
    pod instead of on the host. The next daemon continues from the journal.
    """
    be_home()
    home = _home()
    _calling.is_away = True
    try:
        enter(fd)
    except BaseException:
        _calling.is_away = False
        raise
    try:
        yield
    finally:
        _return(home)


def be_home() -> None:
    """Raise KernelError (ESTALE) if the calling thread is in another network namespace than the process."""
    if _calling.is_away:
        raise KernelError("ask the process's network namespace", errno.ESTALE, "the thread is in another namespace")


def is_own(state: os.stat_result) -> bool:
    """Return whether `state`, the stat result of a descriptor, is that of the process's own network namespace."""
    return os.path.samestat(state, os.fstat(_home()))


def _return(home: int) -> None:
    try:
        enter(home)
    except NamespaceError as error:
        log.critical("a thread cannot leave a pod's network namespace, ending", extra={"error": str(error)})
        os._exit(os.EX_OSERR)
    _calling.is_away = False


@cache
def _home() -> int:
    """Return a descriptor of the process's own network namespace. It stays open until the process ends."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
