"""Write files atomically: a reader sees either the whole old content or the whole new content, even after a crash of
the machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

DIRECTORY_MODE = 0o755


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Write `data` to the file and create missing parent directories, with fixed modes whatever the umask is. Raises
    OSError if a write fails.

    The data first goes to a temporary file whose name begins with a dot and ends in ``.tmp``; our own readers ignore
    such files.
    """
    _make_directory(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write(unfinished, data, mode)
        unfinished.replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise
    _sync_directory(path.parent)


def _make_directory(directory: Path) -> None:
    """Create the directory and its missing parents, with the mode DIRECTORY_MODE."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir()
        directory.chmod(DIRECTORY_MODE)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.unlink(missing_ok=True)  # left by an earlier process with our pid that died
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, mode)
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
