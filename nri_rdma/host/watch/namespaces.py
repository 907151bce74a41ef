"""Notices that a sandbox's network namespace is gone when no event tells.

containerd sends no Stop for pods that are older than its last start. When the runtime removes such a pod it unmounts
and deletes the namespace's file, which inotify tells on the folder. Our open descriptor keeps the namespace alive
until everything in it is home.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import select
import struct
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

_IN_DELETE, _IN_MOVED_FROM, _IN_Q_OVERFLOW, _IN_IGNORED = 0x200, 0x40, 0x4000, 0x8000  # include/uapi/linux/inotify.h
_EVENT = struct.Struct("=iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class NamespaceWatcher:
    """Calls `on_gone(path)` in a thread of its own when a watched file is deleted. `close` joins the thread.

    After a queue overflow, or when a watched folder itself is deleted, `on_overflow` is called: anything may have gone
    unnoticed. What these raise is logged.
    """

    def __init__(self, on_gone: Callable[[str], None], on_overflow: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._on_overflow = on_overflow
        self._fd = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._folders: dict[int, str] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="namespace-watcher", daemon=True)
        self._thread.start()

    def watch(self, path: str) -> None:
        """Watch the folder of `path`; many files of one folder share one watch. Raises OSError without that folder."""
        folder = path.rpartition("/")[0] or "/"
        with self._lock:
            if self._fd < 0:
                raise OSError(errno.EBADF, f"watch {folder}: the watcher is closed")
            if folder in self._folders.values():
                return
            watch = _libc.inotify_add_watch(self._fd, os.fsencode(folder), _IN_DELETE | _IN_MOVED_FROM)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"watch {folder}")
            self._folders[watch] = folder

    def close(self) -> None:
        """End and join the thread."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._lock:
            for fd in (self._fd, self._wake_read, self._wake_write):
                os.close(fd)
            self._fd = -1  # a worker that outlives us must not add its watch to what has this number next

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while not any(fd == self._wake_read for fd, _ in poll.poll()):
            self._take(os.read(self._fd, 64 << 10))

    def _take(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            watch, mask, _cookie, length = _EVENT.unpack_from(data, offset)
            name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
            offset += _EVENT.size + length
            try:
                self._tell(watch, mask, os.fsdecode(name))
            except Exception:  # the next event must not be lost to what this one's listener did
                log.exception("namespace watcher")

    def _tell(self, watch: int, mask: int, name: str) -> None:
        with self._lock:
            folder = self._folders.pop(watch, None) if mask & _IN_IGNORED else self._folders.get(watch)
        if mask & (_IN_Q_OVERFLOW | _IN_IGNORED):
            log.warning("namespaces may have gone unnoticed, looking at all", extra={"folder": folder or ""})
            self._on_overflow()
        elif folder is not None and name:
            self._on_gone(f"{folder}/{name}")
