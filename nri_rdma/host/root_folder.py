"""Read files below a folder that a stranger has filled, such as a container's root: nothing leads out of it.

Links are followed as if the folder were the root (openat2, RESOLVE_IN_ROOT). Only regular files are opened, so that no
FIFO is waited for and no device does anything. A mount below the folder is not entered, unless the caller says so: a
volume may be on a server that never answers.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

MOST_NAMES = 1024
"""Of a folder's entries."""
_OPENAT2 = 437
"""The call's number, the same on all architectures."""
_NO_XDEV, _NO_MAGICLINKS, _IN_ROOT = 0x01, 0x02, 0x10
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_TRIES = 8
"""A path on which somebody renames things meanwhile is EAGAIN."""
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class RootFolder:
    """A folder, open until `close`. Paths are as a program sees them that has this folder for its root."""

    def __init__(self, folder: str, *, enters_mounts: bool = False) -> None:
        """Open the folder, whose path is trusted. Raises OSError."""
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._resolve = _IN_ROOT | _NO_MAGICLINKS | (0 if enters_mounts else _NO_XDEV)

    def close(self) -> None:
        """Close the folder; repeating it is no error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def opened(self, path: str) -> Iterator[int | None]:
        """Open a regular file to be read: a descriptor; None where there is none. Raises OSError with EXDEV for a file
        on a mount, and others for what cannot be read."""
        place = self._open(path, os.O_PATH)
        try:
            if place is None or not stat.S_ISREG(os.fstat(place).st_mode):
                yield None
                return
            # The same file, whatever the path leads to by now: a descriptor of O_PATH cannot be read.
            fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)
        finally:
            if place is not None:
                os.close(place)

    def read(self, path: str, most: int) -> bytes:
        """Return the first bytes of a file; nothing where there is none. Raises OSError."""
        with self.opened(path) as fd:
            return os.pread(fd, most, 0) if fd is not None else b""

    def has(self, path: str) -> bool:
        """Return whether there is a regular file. Raises OSError."""
        with self.opened(path) as fd:
            return fd is not None

    def names(self, path: str) -> list[str]:
        """Return the names in a folder, in order; none where there is no folder. Raises OSError."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
        if fd is None:
            return []
        try:
            with os.scandir(fd) as entries:
                return sorted(entry.name for entry in islice(entries, MOST_NAMES))
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int | None:
        how = _How(flags=flags | os.O_CLOEXEC, resolve=self._resolve)
        try:
            name = os.fsencode(path)
        except UnicodeEncodeError:
            return None
        if b"\0" in name:
            return None
        for _ in range(_TRIES):
            fd: int = _libc.syscall(_OPENAT2, self._fd, name, ctypes.byref(how), ctypes.sizeof(how))
            if fd >= 0:
                return fd
            code = ctypes.get_errno()
            if code in _NOT_THERE:
                return None
            if code not in {errno.EAGAIN, errno.EINTR}:
                break
        raise OSError(code, os.strerror(code), path)
