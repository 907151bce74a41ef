"""The image's folder on its host, which may have no Python: the interpreter, the hooks and `nri-rdma` itself.

The host's folder has two releases, `a` and `b`, of which one counts: bin, lib and local are links into it. Another
release is written where nothing counts, then the links are switched. So a hook that starts meanwhile has all of one
release (of two, the loader and its libc do not fit), one that runs keeps its files, and the way back to the release
before writes nothing. For that, the paths in programs name the release and not the link.

Law: bin is switched last, and names the release that counts. What else is in the folder is not ours, and stays.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nri_rdma.commands.install.image_folder import BIN, HostRelease, ImageFolder
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.foreign import foreign_folder

RELEASES = ("a", "b")
LONGEST = 100
"""Bytes of the folder's path: kernels before 5.1 read 127 of a program's first line."""
_PATH = re.compile(r"(/(?!\.\.?(/|$))[\w.+-]+)+", re.ASCII)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolder:
    """The folder: this process sees it at `here`, and the host has it at `path`."""

    here: Path
    path: str

    def place(self, root: Path) -> int:
        """Have the folder's programs be those below `root`, and return how many files that took. Raises NriRdmaError;
        then the release that counted still does."""
        self._refuse_path()
        image = ImageFolder.read(root)
        with self._telling(), self._locked() as folder:
            self._refuse_folder(image)
            now, other = self._releases()
            if now is not None and not any(image.differing(now)):
                return 0
            written = image.write(other, beside=now or other)
            _sync(folder)  # else a crash of the machine could leave links to empty files, and no container starts
            self._switch(image, other)
        return written

    def remove(self) -> bool:
        """Remove what `place` wrote, and return whether there was anything. Raises NriRdmaError."""
        with self._telling(), self._locked():
            links = self._links()
            releases = [path for name in RELEASES if (path := self.here / name).is_dir()]
            for link in links:
                link.unlink()
            for release in releases:
                shutil.rmtree(release)
        return bool(links or releases)

    def _refuse_path(self) -> None:
        if not _PATH.fullmatch(self.path):
            what = "the folder's path is not absolute, or has other characters than letters, digits and ._+-"
        elif len(self.path) > LONGEST:
            what = f"the folder's path has {len(self.path)} characters: {LONGEST} fit into the first line of a program"
        else:
            return
        raise NriRdmaError(ErrorCode.INSTALL, what, where=self.path, hint="choose another path on the host")

    def _refuse_folder(self, image: ImageFolder) -> None:
        if os.statvfs(self.here).f_flag & os.ST_NOEXEC:
            what, hint = "the folder is mounted noexec: no program starts there", "choose another path on the host"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=self._where, hint=hint)
        if foreign := foreign_folder(self.here):
            what = f"others than root may replace files in {foreign}, and root runs what is there"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=self._where, hint="chown root, chmod go-w")
        for name in image.tops:
            if (path := self.here / name).exists() and path not in self._links():
                what, hint = f"the folder has a {name} that is not ours", "move it away, or choose another path"
                raise NriRdmaError(ErrorCode.INSTALL, what, where=self._where, hint=hint)

    @property
    def _where(self) -> str:
        return self.path if self.path == str(self.here) else f"{self.path} of the host, mounted at {self.here}"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Raise NriRdmaError for what the system refuses."""
        try:
            yield
        except OSError as error:
            what = f"the folder cannot be written: {error.strerror or error}: {error.filename or self.here}"
            hint = "have a folder of the host there that root may write and that has room, or choose another path"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=self._where, hint=hint) from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Wait until nobody else writes here; yield the folder's descriptor."""
        folder = os.open(self.here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)

    def _releases(self) -> tuple[HostRelease | None, HostRelease]:
        """Return the release that counts, if there is one yet, and the other."""
        a, b = (HostRelease(here=self.here / name, path=f"{self.path}/{name}") for name in RELEASES)
        if self.here / BIN not in self._links():
            return None, a
        return (a, b) if (self.here / BIN).readlink().parts[0] == RELEASES[0] else (b, a)

    def _links(self) -> list[Path]:
        """Return our links, bin first: without it no program is found."""
        links = [path for path in self.here.iterdir() if path.is_symlink() and path.readlink().parts[0] in RELEASES]
        return sorted(links, key=lambda path: path.name != BIN)

    def _switch(self, image: ImageFolder, release: HostRelease) -> None:
        for name in image.tops:
            fresh = self.here / f".{name}.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(f"{release.here.name}/{name}")
            fresh.replace(self.here / name)
        for link in self._links():
            if link.name not in image.tops:
                link.unlink()


def _sync(folder: int) -> None:
    """Have all that was written be on the disk. Raises OSError."""
    if _libc.syncfs(folder) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
