"""Network namespaces that another process passed to the daemon as descriptors, which then replace their paths.

Opening the namespace of another user's process takes more rights than the daemon has. A process with these rights opens
the namespace and passes the descriptor. Until it is withdrawn, opening the path gives that namespace.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


class HandedNamespaces:
    """The passed namespaces, by path. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: dict[str, int] = {}

    def hand(self, path: str, fd: int) -> None:
        """Let `path` stand for the namespace of this descriptor, which is duplicated and stays open for the caller.
        Raises OSError."""
        own = os.dup(fd)  # closed at the next exec, like all descriptors that Python makes
        with self._lock:
            before, self._by_path[path] = self._by_path.get(path), own
        if before is not None:
            os.close(before)

    def withdraw(self, path: str) -> None:
        """Let the path stand for the file at that path again. Repeating it is no error."""
        with self._lock:
            own = self._by_path.pop(path, None)
        if own is not None:
            os.close(own)

    def open(self, path: str) -> int:
        """Return a new descriptor of the namespace that `path` stands for; the caller closes it. Raises OSError or
        ValueError."""
        with self._lock:
            if path in self._by_path:
                return os.dup(self._by_path[path])
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def state(self, path: str) -> os.stat_result:
        """Return the stat result of the namespace file that `path` stands for. Raises OSError."""
        with self._lock:
            if path in self._by_path:
                return os.fstat(self._by_path[path])
        return Path(path).stat()
