"""Read files below a folder whose content is not trusted, such as a container's root: no path leads out of the folder.

Symbolic links are resolved in the way in which a process with this root folder resolves them (openat2,
RESOLVE_IN_ROOT). Only regular files are opened: opening a FIFO could block, and opening a device could have effects. A
mount below the folder is not entered unless the caller allows it, because its server may never answer.
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
"""The largest number of names to read from one folder."""
_OPENAT2 = 437
"""The number of the system call openat2, which all architectures share."""
_NO_XDEV, _NO_MAGICLINKS, _IN_ROOT = 0x01, 0x02, 0x10
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
_TRIES = 8
"""Attempts to open a path: openat2 fails with EAGAIN if something on the path is renamed meanwhile."""
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class RootFolder:
    """A folder, open until `close`. Paths in it are resolved in the way in which a process with this root folder
    resolves them, so no path leads out of it."""

    def __init__(self, folder: str, *, enters_mounts: bool = False) -> None:
        """Open the folder; its own path is trusted. `enters_mounts`: also read files on file systems that are mounted
        below the folder. Raises OSError if the folder cannot be opened."""
        self._fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._resolve = _IN_ROOT | _NO_MAGICLINKS | (0 if enters_mounts else _NO_XDEV)

    def close(self) -> None:
        """Close the folder. Closing twice does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @contextmanager
    def opened(self, path: str) -> Iterator[int | None]:
        """Open a regular file for reading and yield its descriptor; None if there is no regular file at this path.

        Raises OSError: EXDEV for a file on another mount, another errno for a file that cannot be read.
        """
        place = self._open(path, os.O_PATH)
        try:
            if place is None or not stat.S_ISREG(os.fstat(place).st_mode):
                yield None
                return
            # A descriptor of O_PATH cannot be read. This opens the checked file, whatever its path names now.
            fd = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                yield fd
            finally:
                os.close(fd)
        finally:
            if place is not None:
                os.close(place)

    def read(self, path: str, most: int) -> bytes:
        """Return the first `most` bytes of a file; b"" if there is no regular file. Raises OSError if the file cannot
        be read."""
        with self.opened(path) as fd:
            return os.pread(fd, most, 0) if fd is not None else b""

    def has(self, path: str) -> bool:
        """Return whether there is a regular file at this path. Raises OSError if that cannot be determined."""
        with self.opened(path) as fd:
            return fd is not None

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, at most MOST_NAMES; [] if there is no such folder. Raises OSError if the
        folder cannot be read."""
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
