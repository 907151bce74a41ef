"""The CDI specs of the last reading: a node has a file for each claim, and each new one is a reading.

A file that is unchanged by its inode's times, size and number is not opened again; one with the same bytes is not
parsed again.
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
"""How old the last change of a file must be when it is read, for its times to tell any later change: the kernel's clock
for them stands still for up to 10 ms (a hundred ticks a second at the least)."""
_State: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _KnownFile:
    """The result of reading a file; `state` is None as long as its times do not tell a change."""

    digest: bytes
    inspected: Inspected
    state: _State | None


class KnownFiles:
    """The results of the last reading, by file. For one reading at a time."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock` is that of the files' times, in seconds."""
        self._clock = clock
        self._known: dict[str, _KnownFile] = {}
        self._asked: dict[str, _KnownFile] = {}

    def read(self, directory: Path, entry: FolderEntry) -> Inspected:
        """Return what nri_rdma.cdi.reading.inspect says of a file of a directory. Raises CdiError."""
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
        """Drop the results that nobody asked for since the last call."""
        self._known, self._asked = self._asked, {}

    def _state(self, entry: FolderEntry) -> _State | None:
        """Return what changes whenever the file does, None where nothing does: a link stays while its target
        changes."""
        try:
            now = entry.stat(follow_symlinks=False)
        except OSError:  # it is gone; reading it says so
            return None
        is_settled = now.st_ctime <= self._clock() - SETTLED_S
        if not is_settled or not stat.S_ISREG(now.st_mode):
            return None
        return now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns
