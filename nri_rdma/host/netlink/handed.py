"""Network namespaces that somebody has handed over as descriptors, each in place of a path.

To open the namespace of another user's process takes more rights than the daemon has; who has them opens it and hands
the descriptor over. The path of such a namespace leads to it for as long as it is handed over.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


class HandedNamespaces:
    """Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: dict[str, int] = {}

    def hand(self, path: str, fd: int) -> None:
        """Have a path lead to the namespace of a descriptor, which stays the caller's. Raises OSError."""
        own = os.dup(fd)  # closed at the next exec, as all that Python makes
        with self._lock:
            before, self._by_path[path] = self._by_path.get(path), own
        if before is not None:
            os.close(before)

    def withdraw(self, path: str) -> None:
        """Have the path lead where the file system says; again is no error."""
        with self._lock:
            own = self._by_path.pop(path, None)
        if own is not None:
            os.close(own)

    def open(self, path: str) -> int:
        """Return a descriptor of the namespace at a path, which is the caller's. Raises OSError, ValueError."""
        with self._lock:
            if path in self._by_path:
                return os.dup(self._by_path[path])
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def state(self, path: str) -> os.stat_result:
        """Return the state of the file to which a path leads. Raises OSError."""
        with self._lock:
            if path in self._by_path:
                return os.fstat(self._by_path[path])
        return Path(path).stat()
