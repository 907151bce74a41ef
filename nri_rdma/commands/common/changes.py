"""Changes of files that other programs read: shown as differences first, then written or removed one after the other.

Law: a file that nri-rdma did not make is neither changed nor removed. The only exception needs the flag
`--edit-config`: it adds lines to such a file, and uninstalling removes them again
(nri_rdma.commands.install.toml_lines).
"""

from __future__ import annotations

import difflib
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.foreign import foreign_folder
from nri_rdma.host.whole_file import write_whole

_NOTHING = "/dev/null"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFile:
    """A file that nri-rdma installs. `is_ours` returns whether any release of nri-rdma could have made a file with the
    given content."""

    path: Path
    data: bytes
    is_ours: Callable[[bytes], bool]
    mode: int = 0o644
    copy_of: Path | None = None
    """The file of which this one is a copy; None: it is not a copy. The lines of a copy are not shown to the user."""
    about: str = ""
    """A sentence about the file's purpose. It is shown in place of the file's lines if these are not for people."""
    is_module: bool = False
    """Whether the file is a Python module, which Python compiles into `__pycache__` beside it."""

    @property
    def compiled(self) -> tuple[Path, ...]:
        """The compiled files that Python interpreters have made of the module; empty if this is not a module."""
        pattern = f"{self.path.stem}.*.pyc*"  # a killed Python leaves NAME.pyc.NUMBER
        return tuple(sorted(self._compiled_folder.glob(pattern))) if self.is_module else ()

    def remove_compiled(self) -> None:
        """Remove the module's compiled files. Otherwise Python could use compiled code of an older content, because it
        checks only the source's size and its modification time in seconds. Raises OSError if a file cannot be
        removed."""
        for path in self.compiled:
            path.unlink(missing_ok=True)
        if self.is_module:
            remove_empty(self._compiled_folder)

    @property
    def foreign(self) -> str:
        """A sentence that says how users other than root could replace the file or its compiled code; "" if they
        cannot. Raises OSError if the folder cannot be read."""
        if self.is_module and self._compiled_folder.is_symlink():
            return f"{self._compiled_folder} is a link"
        folder = foreign_folder(self._compiled_folder if self.is_module else self.path.parent)
        return f"others than root may replace files in {folder}" if folder else ""

    @property
    def _compiled_folder(self) -> Path:
        return self.path.parent / "__pycache__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The content and mode of an existing file."""

    data: bytes
    mode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """A file that will be written or, with `is_removal`, removed. `before` is the existing file; None if there is none.
    Writing and removing also delete the compiled code of a Python module."""

    file: OwnFile
    before: Found | None
    is_removal: bool = False

    def shown(self) -> str:
        """Return the change in the format of `diff -u`, with a line for each compiled file that is removed."""
        compiled = "".join(f"--- {it}\n+++ {_NOTHING}\n" for it in self.file.compiled)
        return ("" if self.is_removal and self.before is None else self._difference()) + compiled

    def carry_out(self) -> None:
        """Write the file, or remove it. If the compiled code cannot be removed, the change is undone. Raises OSError if
        anything fails."""
        if self.is_removal:
            self.file.path.unlink(missing_ok=True)
        else:
            write_whole(self.file.path, self.file.data, self.file.mode)
        try:
            self.file.remove_compiled()
        except OSError:
            self.undo()
            raise

    def undo(self) -> None:
        """Restore the file as it was before the change, and remove compiled code. Raises OSError if the file cannot be
        written or removed."""
        if self.before is None:
            self.file.path.unlink(missing_ok=True)
        else:
            write_whole(self.file.path, self.before.data, self.before.mode)
        self.file.remove_compiled()

    def _difference(self) -> str:
        path, lines = str(self.file.path), () if self.is_removal else _lines(self.file.data)
        before = _lines(self.before.data) if self.before is not None else ()
        old, new = path if self.before is not None else _NOTHING, _NOTHING if self.is_removal else path
        if about := self.file.about or (f"a copy of {self.file.copy_of}" if self.file.copy_of is not None else ""):
            what = "" if self.is_removal else f"({about}, {len(lines)} lines)\n"
            return f"--- {old}\n+++ {new}\n{what}"
        return "".join(difflib.unified_diff(before, lines, old, new)) or f"--- {old}\n+++ {new}\n"


def to_write(files: Iterable[OwnFile]) -> tuple[FileChange, ...]:
    """Return the changes that bring these files to their wanted content and mode, in the given order. Files that need
    no change are left out.

    Raises NriRdmaError if a file with such a path was not made by nri-rdma, and OSError if a file cannot be read.
    """
    found = [(file, _state(file)) for file in files]
    return tuple(
        FileChange(file=file, before=before)
        for file, before in found
        if before != Found(data=file.data, mode=file.mode)
    )


def to_remove(files: Iterable[OwnFile]) -> tuple[FileChange, ...]:
    """Return the changes that remove these files and their compiled code, in the given order. Files that do not exist
    are left out.

    Raises NriRdmaError if a file with such a path was not made by nri-rdma, and OSError if a file cannot be read.
    """
    found = [(file, _state(file)) for file in files]
    return tuple(
        FileChange(file=file, before=before, is_removal=True)
        for file, before in found
        if before is not None or file.compiled
    )


def carry_out_all(changes: Iterable[FileChange], check: Callable[[], None] = lambda: None) -> None:
    """Carry out all changes, or none: if one change or `check` fails, the changes already done are undone.

    Raises the OSError or NriRdmaError that stopped it. If files could not be restored, raises an NriRdmaError that
    names them.
    """
    done: list[FileChange] = []
    try:
        for change in changes:
            change.carry_out()  # one change is carried out wholly or not at all
            done.append(change)
        check()
    except (OSError, NriRdmaError) as error:
        left = [problem for change in reversed(done) if (problem := _undone(change))]
        if left:
            raise NriRdmaError(
                ErrorCode.INSTALL,
                f"{error}; after that, these files could not be restored: {'; '.join(left)}",
                hint="restore them by hand, then try again",
            ) from error
        raise


def _undone(change: FileChange) -> str:
    """Undo a change. Returns "" if that worked, otherwise the path and the reason of the failure."""
    try:
        change.undo()
    except OSError as error:
        return f"{change.file.path} ({error.strerror or error})"
    return ""


def remove_empty(folder: Path) -> None:
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def _state(file: OwnFile) -> Found | None:
    """Return the content and mode of the file at the path; None if there is none. Raises NriRdmaError if nri-rdma did
    not make it."""
    _refuse_foreign(file)
    try:
        mode = file.path.lstat().st_mode
    except FileNotFoundError:
        return None
    data = file.path.read_bytes() if stat.S_ISREG(mode) else b""
    if not stat.S_ISREG(mode) or not file.is_ours(data):
        raise NriRdmaError(
            ErrorCode.INSTALL,
            "this file was not made by nri-rdma, so it is left alone",
            where=str(file.path),
            hint="move it to another place, then try again",
        )
    return Found(data=data, mode=stat.S_IMODE(mode))


def _refuse_foreign(file: OwnFile) -> None:
    """Raise NriRdmaError if users other than root may replace the file or its compiled code, because root will run
    it."""
    if fault := file.foreign:
        hint = "have root own it and nobody else write it (chown root, chmod go-w), then try again"
        raise NriRdmaError(ErrorCode.INSTALL, fault, where=str(file.path), hint=hint)


def _lines(data: bytes) -> list[str]:
    return data.decode(errors="replace").splitlines(keepends=True)
