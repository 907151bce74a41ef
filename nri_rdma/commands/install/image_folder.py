"""The image's folder of programs, and copies of it that run at another path.

Three kinds of absolute paths in programs are rewritten: the ELF interpreter, the RPATH, and the first lines of scripts.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.errors import ErrorCode, NriRdmaError

BIN = "bin"
_FIRST_LINE = re.compile(rb"\A#!\S*/(python3[.0-9]*)")
_LIBRARIES = rb"/[./]*/lib(?=[/\0])"
"""Matches the part of a path that follows the image's folder in the ELF interpreter and the RPATH. The image has extra
dots and slashes there, which leave room for a longer folder name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRelease:
    """One copy of the programs. This process reaches it at the path `here`; on the host, where its programs run, its
    path is `path`."""

    here: Path
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolder:
    """The image's folder that is copied. `names` are the relative paths of everything in it. A folder comes before its
    content."""

    root: Path
    names: tuple[Path, ...]

    @classmethod
    def read(cls, root: Path) -> ImageFolder:
        """Return the folder `root` with the list of everything in it. Raises NriRdmaError if its Python interpreter
        cannot be made to run at another path."""
        image = cls(root=root, names=tuple(sorted(path.relative_to(root) for path in root.rglob("*"))))
        interpreter = (root / BIN / "python3").resolve()
        if not interpreter.is_file() or not image._own_path.search(interpreter.read_bytes()):
            what = f"{interpreter} is not the interpreter of nri-rdma's image: a copy of it would not run"
            raise NriRdmaError(ErrorCode.INSTALL, what, hint="run this in a container of the image")
        return image

    @property
    def tops(self) -> tuple[str, ...]:
        """The names directly in the folder. `bin` comes last."""
        return tuple(sorted({name.parts[0] for name in self.names}, key=lambda it: (it == BIN, it)))

    def differing(self, release: HostRelease) -> Iterator[Path]:
        """Yield the paths that are missing or different in the copy `release`, compared with the image. Then yield the
        paths that only the copy has.

        Of the paths that only the copy has, the content of a folder comes before the folder, so that they can be
        removed in this order.
        """
        for name in self.names:
            if _look(release.here / name) != self._wanted(name, release):
                yield name
        too_much = {path.relative_to(release.here) for path in release.here.rglob("*")} - set(self.names)
        yield from sorted(too_much, reverse=True)

    def write(self, release: HostRelease, beside: HostRelease) -> int:
        """Bring the copy `release` up to date, and return how many files and links were written. A file that the copy
        `beside` has with the wanted content becomes a hard link to it."""
        release.here.mkdir(exist_ok=True)
        release.here.chmod(0o755)
        known, written = set(self.names), 0
        for name in self.differing(release):
            target = release.here / name
            if name in known:
                written += _write(target, self._wanted(name, release), beside.here / name)
            else:
                _remove(target)
        return written

    def _wanted(self, name: Path, release: HostRelease) -> _File:
        found = _look(self.root / name)
        assert found is not None  # `names` lists only existing files
        if stat.S_ISLNK(found.mode):
            return found
        mode = stat.S_IFMT(found.mode) | (0o755 if found.mode & stat.S_IXUSR else 0o644)
        content = self._moved(found.content, os.fsencode(release.path)) if name.parent == Path(BIN) else found.content
        return _File(mode, content)

    def _moved(self, program: bytes, to: bytes) -> bytes:
        program = _FIRST_LINE.sub(lambda found: b"#!%s/bin/%s" % (to, found[1]), program)
        return self._own_path.sub(lambda found: to + b"lib".rjust(len(found[0]) - len(to), b"/"), program)

    @property
    def _own_path(self) -> re.Pattern[bytes]:
        return re.compile(re.escape(os.fsencode(self.root)) + _LIBRARIES)


@dataclass(frozen=True, slots=True)
class _File:
    """The content of a path. `mode` includes the type: file, link or folder. `content` is the bytes of a file or the
    target of a link; empty for a folder."""

    mode: int
    content: bytes


def _look(path: Path) -> _File | None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(mode):
        return _File(mode, os.fsencode(path.readlink()))
    return _File(mode, path.read_bytes() if stat.S_ISREG(mode) else b"")


def _write(target: Path, wanted: _File, twin: Path) -> int:
    """Replace the target in one step, so that a running program keeps its old file. If `twin` has the wanted content,
    link to it. Returns the number of files written: 0 for a folder, otherwise 1."""
    there = _look(target)
    if there is not None and stat.S_IFMT(there.mode) != stat.S_IFMT(wanted.mode):
        _remove(target)
    if stat.S_ISDIR(wanted.mode):
        target.mkdir(exist_ok=True)
        target.chmod(stat.S_IMODE(wanted.mode))
        return 0
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    if stat.S_ISLNK(wanted.mode):
        fresh.symlink_to(os.fsdecode(wanted.content))
    elif _look(twin) == wanted:
        fresh.hardlink_to(twin)
    else:
        fresh.write_bytes(wanted.content)
        fresh.chmod(stat.S_IMODE(wanted.mode))
    fresh.replace(target)
    return 1


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
