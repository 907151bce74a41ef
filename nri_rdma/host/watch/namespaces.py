"""Notices that a sandbox's network namespace is gone when the runtime sends no event for it.

containerd sends no Stop event for pods that are older than its last start. When it removes such a pod, it unmounts and
deletes the namespace's file, which inotify reports for the folder. The daemon's open descriptor keeps the namespace
itself alive until every device in it has been returned to the host.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from nri_rdma.host.watch import inotify
from nri_rdma.tasks.listeners import TURN_S, Listeners, Source

log = logging.getLogger(__name__)


class NamespaceWatcher:
    """Calls `on_gone(path)` in the listening thread when a watched namespace file is deleted. Calls `on_overflow` after
    events were lost or a watched folder was deleted, because the end of any namespace may then have been missed.

    An exception of these functions is logged, and later events are still reported. `close` stops watching.
    """

    def __init__(self, listeners: Listeners, on_gone: Callable[[str], None], on_overflow: Callable[[], None]) -> None:
        self._on_gone = on_gone
        self._on_overflow = on_overflow
        self._inotify = inotify.Inotify()
        self._folders: dict[int, str] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._untold: deque[tuple[int, int, str]] = deque()
        self._listeners = listeners
        self._source = Source(
            name="namespaces", fd=self._inotify.fileno(), read=self._read, due_at=self._due_at, settle=self._tell_some
        )
        listeners.add(self._source)

    def watch(self, path: str) -> None:
        """Watch for the deletion of the file at `path`. Files in one folder share one watch. Raises OSError if the
        folder does not exist."""
        folder = path.rpartition("/")[0] or "/"
        with self._lock:
            if self._closed:  # the descriptor's number may be in use again, by another file
                raise OSError(errno.EBADF, f"watch {folder}: the watcher is closed")
            if folder in self._folders.values():
                return
            try:
                watch = self._inotify.add(folder, inotify.DELETE | inotify.MOVED_FROM)
            except OSError as error:
                raise OSError(error.errno, f"watch {folder}") from error
            self._folders[watch] = folder

    def close(self) -> None:
        """Stop watching all files. Closing twice does nothing."""
        self._listeners.remove(self._source)
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inotify.close()

    def _read(self) -> None:
        self._untold.extend((event.watch, event.mask, event.name) for event in self._inotify.read())

    def _due_at(self) -> float | None:
        return time.monotonic() if self._untold else None

    def _tell_some(self) -> None:
        """Report pending events one by one, for at most TURN_S seconds, so that the listening thread can serve
        others."""
        until = time.monotonic() + TURN_S
        while self._untold and time.monotonic() < until:
            self._tell(*self._untold.popleft())

    def _tell(self, watch: int, mask: int, name: str) -> None:
        with self._lock:
            folder = self._folders.pop(watch, None) if mask & inotify.IGNORED else self._folders.get(watch)
        if mask & (inotify.Q_OVERFLOW | inotify.IGNORED):
            log.warning("namespace events may be lost, checking all namespaces", extra={"folder": folder or ""})
            self._on_overflow()
        elif folder is not None and name:
            self._on_gone(f"{folder}/{name}")
