"""Being in another network namespace for a moment.

setns changes the calling thread only. Whoever visits starts no thread or process there, which would stay, and visits no
second namespace from the first.
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
    """Have the calling thread enter the namespace of a descriptor, to stay there. Raises NamespaceError."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NamespaceError("enter the network namespace", ctypes.get_errno())


class _Whereabouts(threading.local):
    """Of the calling thread."""

    is_away = False
    """Whether it is in another namespace than the process, or about to be."""


_calling = _Whereabouts()


@contextmanager
def visiting(fd: int) -> Iterator[None]:
    """Have the calling thread be in the namespace of a descriptor meanwhile. Raises NamespaceError, and what `be_home`
    raises.

    A thread that the kernel does not let home, for want of memory, ends the process: it would do in the pod what it is
    to do on the host. The next daemon goes on from the journal.
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
    """Raise KernelError (ESTALE) in a thread that is visiting a namespace."""
    if _calling.is_away:
        raise KernelError("ask the process's network namespace", errno.ESTALE, "the thread is in another one")


def is_own(state: os.stat_result) -> bool:
    """Return whether the state of a descriptor is that of the namespace that this process lives in."""
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
    """Return a descriptor of the namespace that this process lives in, for its whole life."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
