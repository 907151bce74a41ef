"""Network namespaces that another process sent to the daemon as descriptors, each for a path at which the daemon would
open it.

Opening the namespace of another user's process takes more rights than the daemon has. So a process with these rights
opens the namespace and sends the descriptor over a socket. Until the descriptor is withdrawn, the daemon uses it
whenever it is to open that path.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path


class HandedNamespaces:
    """Descriptors of network namespaces by path. Another process, with more rights, opened them and sent them to the
    daemon, which uses them in place of the files at these paths. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_path: dict[str, int] = {}

    def hand(self, path: str, fd: int) -> None:
        """Use this descriptor's namespace from now on in place of the file at `path`, until `withdraw` is called. The
        caller keeps `fd`, which is duplicated. Raises OSError if no descriptor is left."""
        own = os.dup(fd)  # closed at the next exec, like all descriptors that Python makes
        with self._lock:
            before, self._by_path[path] = self._by_path.get(path), own
        if before is not None:
            os.close(before)

    def withdraw(self, path: str) -> None:
        """Close the descriptor that `hand` recorded for this path. From then on, the file at the path is opened.
        Nothing happens if there is no descriptor."""
        with self._lock:
            own = self._by_path.pop(path, None)
        if own is not None:
            os.close(own)

    def open(self, path: str) -> int:
        """Return a new descriptor of a namespace, which the caller closes: a duplicate of the one that `hand` recorded
        for `path` or, if there is none, of the file at `path`. Raises OSError, or ValueError for a path with a null
        character."""
        with self._lock:
            if path in self._by_path:
                return os.dup(self._by_path[path])
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def state(self, path: str) -> os.stat_result:
        """Return the stat result of the namespace whose descriptor `hand` recorded for `path` or, if there is none, of
        the file at `path`. Raises OSError if there is no such file."""
        with self._lock:
            if path in self._by_path:
                return os.fstat(self._by_path[path])
        return Path(path).stat()
