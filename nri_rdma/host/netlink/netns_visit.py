"""Being in another network namespace for a moment.

setns changes the calling thread only. Whoever visits starts no thread or process there, which would stay, and visits no
second namespace from the first.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from functools import cache

from nri_rdma.attach.port import KernelError, NamespaceError

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def enter(fd: int) -> None:
    """Have the calling thread enter the namespace of a descriptor, to stay there. Raises NamespaceError."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NamespaceError("enter the network namespace", ctypes.get_errno())


class _Place(Enum):
    """The place of a thread."""

    HOME = auto()
    VISITING = auto()
    LOST = auto()
    """Elsewhere, without any business there: the kernel did not let it home."""


class _Whereabouts(threading.local):
    """Of the calling thread."""

    place = _Place.HOME


_calling = _Whereabouts()


@contextmanager
def visiting(fd: int) -> Iterator[None]:
    """Have the calling thread be in the namespace of a descriptor meanwhile. Raises NamespaceError, and what `be_home`
    raises."""
    be_home()
    _home()  # opened before the first thread leaves
    enter(fd)
    _calling.place = _Place.VISITING
    try:
        yield
    finally:
        _calling.place = _Place.LOST
        _return()


def be_home() -> None:
    """Return in a thread that is in the process's namespace. One that could not come home from its last visit, for want
    of memory, tries again. Raises KernelError (ESTALE) in a thread that is visiting, NamespaceError in one that still
    cannot come home."""
    if _calling.place is _Place.VISITING:
        raise KernelError("ask the process's network namespace", errno.ESTALE, "the thread is in another one")
    if _calling.place is _Place.LOST:
        _return()


def is_own(state: os.stat_result) -> bool:
    """Return whether the state of a descriptor is that of the namespace that this process lives in."""
    return os.path.samestat(state, os.fstat(_home()))


def _return() -> None:
    enter(_home())
    _calling.place = _Place.HOME


@cache
def _home() -> int:
    """Return a descriptor of the namespace that this process lives in, for its whole life."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
