"""A file of lines, of which the newest one to two megabytes are kept, in a folder that a reboot empties. The lines are
the spans and refusals of a daemon.

There are two files: when the first is full, it replaces the second, older one. A line is appended by one system call,
without a sync. A killed process loses at most the line that it was writing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)

FILE_BYTES: Final = 1 << 20
"""Size in bytes from which a file is full: about 4,500 spans."""
ASIDE: Final = ".unreadable"


class PastFile:
    """Appends lines (spans and refusals as JSON) to a file, and keeps the file with older lines beside it. Not
    thread-safe."""

    def __init__(self, folder: Path, *, file_bytes: int = FILE_BYTES) -> None:
        self.path = folder / "past.jsonl"
        self._older = folder / "past.1.jsonl"
        self._file_bytes = file_bytes

    def read(self, decode: Callable[[bytes], T | None]) -> Iterator[T]:
        """Yield the decoded lines, oldest first. Raises OSError if a file cannot be read.

        `decode` returns None for a line that this release cannot read. A file with such a line is renamed, and the
        renaming is logged. An incomplete last line, from a process that was killed while it wrote, is removed.
        """
        for path in (self._older, self.path):
            with suppress(FileNotFoundError):
                *lines, cut = _content(path, 2 * self._file_bytes).split(b"\n")
                known = [said for line in lines if (said := decode(line)) is not None]
                if unknown := len(lines) - len(known):
                    path.replace(path.with_name(path.name + ASIDE))
                    facts = {"file": f"{path}{ASIDE}", "lines": unknown}
                    log.error("what an earlier daemon did cannot all be read, its file is put aside", extra=facts)
                elif cut:
                    os.truncate(path, path.stat().st_size - len(cut))
                yield from known

    def append(self, lines: Sequence[bytes]) -> None:
        """Append lines. Raises OSError if they cannot be written; the file is then as before."""
        data = b"".join(line + b"\n" for line in lines)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            is_full = size + len(data) >= self._file_bytes
            try:
                while data:
                    data = data[os.write(descriptor, data) :]
            except OSError:
                os.ftruncate(descriptor, size)  # else the next line would continue an incomplete one
                raise
        finally:
            os.close(descriptor)
        if is_full:
            self.path.replace(self._older)


def _content(path: Path, most: int) -> bytes:
    """Return at most `most` bytes from the end of a file, beginning with a whole line."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size <= most:
            return file.read()
        file.seek(size - most)
        return file.read().partition(b"\n")[2]
