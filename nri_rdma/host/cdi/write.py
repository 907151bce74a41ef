"""Write a spec's file atomically: a runtime sees the old file or the new one, whole, also after a crash of the
machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from nri_rdma.cdi.encoding import encode
from nri_rdma.cdi.spec import Spec

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
"""Runtimes that do not run as root read specs, too."""


def write_spec(spec: Spec, directory: Path, name: str) -> Path:
    """Write the spec as `name` into the directory, and create a missing directory. Raises OSError.

    The unfinished file's name has none of the suffixes that runtimes read.
    """
    _make_directory(directory)
    target = directory / name
    unfinished = directory / f".{name}.{os.getpid()}.tmp"
    try:
        _write(unfinished, encode(spec))
        unfinished.replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise
    _sync_directory(directory)
    return target


def _make_directory(directory: Path) -> None:
    """Create the directory and missing ones above it, with our mode whatever the umask is."""
    if not directory.is_dir():
        _make_directory(directory.parent)
        directory.mkdir()
        directory.chmod(DIRECTORY_MODE)


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # of a process of our number that died
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, FILE_MODE)  # whatever the umask is
        file.write(data)
        file.flush()
        os.fsync(descriptor)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
