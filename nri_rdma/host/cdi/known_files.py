"""Remembers parsed CDI specs between readings of their folders: a node has one file per resource claim, and each new
claim causes a reading.

A file whose inode, size and times are unchanged is not opened again. A file with unchanged bytes is not parsed again.
"""

from __future__ import annotations

import hashlib
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nri_rdma.cdi.reading import Inspected, inspect
from nri_rdma.host.cdi.folder import FolderEntry, read_within

SETTLED_S = 0.05
"""The age in seconds that a file's last change must have before the file's times are trusted to show any later change.
The kernel's clock for these times may stand still for up to 10 ms (at 100 ticks a second)."""
_State: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """The result of reading a file. `digest` is a hash of its bytes. `state` has its inode, size and times; None if the
    file changed so recently that its times might not show another change."""

    digest: bytes
    inspected: Inspected
    state: _State | None


class KnownFiles:
    """Remembers the parsed files of the last reading of the CDI folders. Only one reading at a time may use it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the present time in seconds since 1970, which is compared with the change times of files."""
        self._clock = clock
        self._known: dict[str, _KnownFile] = {}
        self._asked: dict[str, _KnownFile] = {}

    def read(self, directory: Path, entry: FolderEntry) -> Inspected:
        """Return the parsed content of a file, from memory if the file is unchanged. Raises CdiError if the file cannot
        be read."""
        file, known = entry.path, self._known.get(entry.path)
        state = self._state(entry)
        if known is None or state is None or known.state != state:
            data = read_within(directory, entry.name)
            digest = hashlib.blake2b(data, digest_size=16).digest()
            inspected = known.inspected if known is not None and known.digest == digest else inspect(data, file)
            known = _KnownFile(digest, inspected, state)
        self._asked[file] = known
        return known.inspected

    def forget_others(self) -> None:
        """Drop the files that `read` has not returned since the last call of this method."""
        self._known, self._asked = self._asked, {}

    def _state(self, entry: FolderEntry) -> _State | None:
        """Return a value that changes whenever the file changes; None if there is no such value.

        There is none for a file that changed just now, and none for a symbolic link, which stays unchanged when its
        target changes.
        """
        try:
            now = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone; the caller notices when it reads the file
            return None
        is_settled = now.st_ctime <= self._clock() - SETTLED_S
        if not is_settled or not stat.S_ISREG(now.st_mode):
            return None
        return now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns
