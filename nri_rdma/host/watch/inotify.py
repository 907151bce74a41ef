"""A wrapper of inotify, by which the kernel reports changes in directories."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

# include/uapi/linux/inotify.h
ATTRIB, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x4, 0x8, 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, Q_OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLYDIR = 0x1000000

_READ_BYTES = 64 << 10
_EVENT = struct.Struct("=iIII")
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderEvent:
    """An inotify event: the watch number (-1: events were lost), the event's bits, and the name of the entry in the
    watched folder."""

    watch: int
    mask: int
    name: str


class Inotify:
    """A set of inotify watches. The owner calls `close`. Not safe for several threads at once."""

    def __init__(self) -> None:
        self._fd = int(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), f"inotify_init1: {os.strerror(ctypes.get_errno())}")

    def fileno(self) -> int:
        """Return the descriptor to poll; it is readable when events are pending."""
        return self._fd

    def add(self, path: str, mask: int) -> int:
        """Watch a path for the events in `mask` and return the watch number. Watching an inode again replaces the mask
        of its watch. Raises OSError if the kernel refuses."""
        watch = int(_libc.inotify_add_watch(self._fd, os.fsencode(path), mask))
        if watch < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
        return watch

    def remove(self, watch: int) -> None:
        """End a watch. Does nothing if the kernel has ended the watch already. An IGNORED event follows."""
        _libc.inotify_rm_watch(self._fd, watch)  # EINVAL: the kernel ended it, because the directory is gone

    def read(self) -> Iterator[FolderEvent]:
        """Yield the pending events, if any. Never blocks."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            yield FolderEvent(watch=watch, mask=mask, name=os.fsdecode(name))

    def close(self) -> None:
        """End all watches and close the inotify descriptor."""
        os.close(self._fd)
