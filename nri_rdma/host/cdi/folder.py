"""Reads directories with CDI specs, without trusting their content.

Only files ``*.json`` and ``*.yaml`` directly in a directory are read, which is also what container runtimes do. A file
that cannot be used is reported as a problem; the other files still count. But if the process has no file descriptor or
memory left, the whole reading fails with OSError: a node must not look as if it had no specs. FIFOs, devices and
sockets are never opened, because that could block. Symbolic links are followed only within the directory, which is how
Kubernetes mounts files.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from nri_rdma.cdi.document import MAX_BYTES
from nri_rdma.cdi.reading import Inspected, inspect
from nri_rdma.cdi.registry import Registry, SpecFile, resolve
from nri_rdma.errors import CdiError, ErrorCode

SUFFIXES = (".json", ".yaml")
MAX_FILES = 4096
"""The largest number of files to read from one directory: sixteen resource claims for each of 250 pods. Further files
are ignored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderScan:
    """The result of reading some directories with CDI specs: the specs, the problems of files that could not be read,
    and the paths of all files."""

    specs: tuple[SpecFile, ...]
    problems: tuple[CdiError, ...]
    files: tuple[str, ...]


def read_registry(directories: Iterable[Path]) -> Registry:
    """Return the CDI devices of these directories. A later directory has priority over an earlier one. A missing
    directory counts as empty."""
    found = scan(directories)
    return resolve(found.specs, found.problems)


FolderEntry: TypeAlias = "os.DirEntry[str]"


def scan(directories: Iterable[Path], inspect: Callable[[bytes, str], Inspected] = inspect) -> FolderScan:
    """Read all CDI specs of these directories. A later directory has priority over an earlier one. `inspect` parses the
    bytes of a file; its second argument is the file's path."""
    return scan_by(directories, lambda directory, entry: inspect(read_within(directory, entry.name), entry.path))


def scan_by(directories: Iterable[Path], read: Callable[[Path, FolderEntry], Inspected]) -> FolderScan:
    """Read all CDI specs of these directories. A later directory has priority over an earlier one.

    `read` returns the parsed content of one file in a directory, or raises CdiError, which is then reported as a
    problem.
    """
    specs: list[SpecFile] = []
    problems: list[CdiError] = []
    files: list[str] = []
    for priority, directory in enumerate(directories):
        for entry in _spec_entries(directory, problems):
            files.append(entry.path)
            try:
                inspected = read(directory, entry)
            except CdiError as error:
                problems.append(error)
                continue
            problems += inspected.problems
            if inspected.spec is not None:
                specs.append(SpecFile(file=entry.path, priority=priority, spec=inspected.spec))
    return FolderScan(specs=tuple(specs), problems=tuple(problems), files=tuple(files))


def read_file(path: Path) -> bytes:
    """Return the bytes of a file that a user named. Symbolic links are followed. Raises CdiError if the file is not
    regular or cannot be read."""
    try:
        _refuse_irregular(path.stat().st_mode, str(path))
        return _read(os.open(path, _FLAGS), str(path))
    except OSError as error:
        raise _unreadable(str(path), error) from error


def _spec_entries(directory: Path, problems: list[CdiError]) -> list[FolderEntry]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except OSError as error:
        problems.append(_unreadable(str(directory), error))
        return []
    chosen = [entry for entry in entries if entry.name.endswith(SUFFIXES) and not entry.is_dir(follow_symlinks=False)]
    if len(chosen) > MAX_FILES:
        what = f"of its {len(chosen)} files only the first {MAX_FILES} are read"
        hint = "remove files of containers that have ended"
        problems.append(CdiError(ErrorCode.CDI_SIZE, what, file=str(directory), hint=hint))
    return chosen[:MAX_FILES]


_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_ONE_STEP = os.O_NOFOLLOW | _FLAGS


def read_within(directory: Path, name: str) -> bytes:
    """Return the bytes of the file `name` in the directory. Raises CdiError if it is not a regular file, cannot be
    read, or is a symbolic link that leads out of the directory."""
    file = str(directory / name)
    try:
        root = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _read(_open_below(root, _steps(directory, name), file), file)
        finally:
            os.close(root)
    except OSError as error:
        if error.errno == errno.ELOOP:
            what = "it is a symbolic link that leads out of the directory or in a loop"
            hint = "put the file itself there, or remove the link"
            raise CdiError(ErrorCode.CDI_FILE, what, file=file, hint=hint) from error
        raise _unreadable(file, error) from error


def _steps(directory: Path, name: str) -> tuple[str, ...]:
    """Return the path of a file, relative to the directory and with all symbolic links resolved. Raises OSError: ELOOP
    if the file is outside the directory."""
    base = Path(os.path.realpath(directory))
    target = Path(os.path.realpath(base / name, strict=True))
    if base not in target.parents:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return target.relative_to(base).parts


def _open_below(root: int, steps: tuple[str, ...], file: str) -> int:
    """Open a file below the folder `root` and return its descriptor. `steps` is the resolved path, and `file` the path
    for errors. A symbolic link on the path is an error: it was created after the path was resolved."""
    at = os.dup(root)
    try:
        for step in steps[:-1]:
            inner = os.open(step, _ONE_STEP | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = inner
        _refuse_irregular(os.stat(steps[-1], dir_fd=at, follow_symlinks=False).st_mode, file)
        return os.open(steps[-1], _ONE_STEP, dir_fd=at)
    finally:
        os.close(at)


def _read(descriptor: int, file: str) -> bytes:
    """Return the bytes of the file and close the descriptor. Of a file that is too large, it returns one byte more than
    allowed, which the parser then refuses."""
    with os.fdopen(descriptor, "rb") as opened:
        _refuse_irregular(os.fstat(descriptor).st_mode, file)
        return opened.read(MAX_BYTES + 1)


def _refuse_irregular(mode: int, file: str) -> None:
    """Raise CdiError for a file that is not regular. `mode` is the file's st_mode.

    Called before opening, because opening a device can have effects, and again on the open file, which can no longer be
    replaced by another one.
    """
    if not stat.S_ISREG(mode):
        what = f"it is {_KINDS.get(stat.S_IFMT(mode), 'no file')}"
        raise CdiError(ErrorCode.CDI_FILE, what, file=file, hint="put a regular file there, or remove it")


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a fifo",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


def _unreadable(file: str, error: OSError) -> CdiError:
    """Return the error for a file that cannot be read. Raises `error` itself if it is not about this file."""
    if error.errno in _EXHAUSTED:
        raise error
    what = f"it cannot be read: {error.strerror or error}"
    return CdiError(ErrorCode.CDI_FILE, what, file=file, hint="repair or remove it, or run as a user who may read it")
