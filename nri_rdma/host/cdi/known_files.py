"""Remembers parsed CDI specs between readings: a node has one file per claim, and each new claim causes a reading.

A file whose inode, size and times are unchanged is not opened again; a file with unchanged bytes is not parsed again.
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
"""The age that a file's last change must have before its times are trusted to show any later change. The kernel's clock
for these times may stand still for up to 10 ms (at 100 ticks a second)."""
_State: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """The result of reading a file. `state` is None if the file changed too recently for its times to show a later
    change."""

    digest: bytes
    inspected: Inspected
    state: _State | None


class KnownFiles:
    """The parsed files of the last reading. Only one reading at a time may use it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the time of the files' clock, in seconds."""
        self._clock = clock
        self._known: dict[str, _KnownFile] = {}
        self._asked: dict[str, _KnownFile] = {}

    def read(self, directory: Path, entry: FolderEntry) -> Inspected:
        """Return the parsed content of a file in a directory, as nri_rdma.cdi.reading.inspect returns it. Raises
        CdiError."""
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
        """Drop the files that were not read since the last call."""
        self._known, self._asked = self._asked, {}

    def _state(self, entry: FolderEntry) -> _State | None:
        """Return a value that changes whenever the file changes; None if there is no such value.

        There is none for a symbolic link, because the link stays the same when its target changes.
        """
        try:
            now = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone; the caller notices when it reads the file
            return None
        is_settled = now.st_ctime <= self._clock() - SETTLED_S
        if not is_settled or not stat.S_ISREG(now.st_mode):
            return None
        return now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns
