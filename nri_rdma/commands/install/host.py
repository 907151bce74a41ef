"""Copies the container image's programs into a folder of the host, which may have no Python: the interpreter, the hooks
and `nri-rdma` itself.

The folder has two releases, `a` and `b`. The links bin, lib and local lead into the current release. A new release is
written into the other folder, then the links are switched. So a running hook keeps its files, and going back to the
previous release writes nothing.

The paths inside a program contain the folder of its release, not a link. So a hook that starts during the switch uses
the files of one release only; a loader would not work with the libc of another.

Law: the link bin is switched last, and decides which release is current. Other files in the folder are left alone.
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
"""The maximum length of the folder's path in bytes. Kernels before 5.1 read only 127 bytes of a script's first line."""
_PATH = re.compile(r"(/(?!\.\.?(/|$))[\w.+-]+)+", re.ASCII)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFolder:
    """The folder for the programs. This process reaches it at the path `here`; on the host its path is `path`."""

    here: Path
    path: str

    def place(self, root: Path) -> int:
        """Install the programs below `root` in the folder, and return how many files were written. Raises NriRdmaError
        if that fails; the current release then stays in use."""
        self._refuse_path()
        image = ImageFolder.read(root)
        with self._telling(), self._locked() as folder:
            self._refuse_folder(image)
            now, other = self._releases()
            if now is not None and not any(image.differing(now)):
                return 0
            written = image.write(other, beside=now or other)
            _sync(folder)  # otherwise a crash could leave links to empty files, and no container would start
            self._switch(image, other)
        return written

    def remove(self) -> bool:
        """Remove all releases and our links, and return whether there was anything to remove. Raises NriRdmaError if
        the folder cannot be written."""
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
        """Turn an OSError in the `with` block into an NriRdmaError that names the folder and says what to do."""
        try:
            yield
        except OSError as error:
            what = f"the folder cannot be written: {error.strerror or error}: {error.filename or self.here}"
            hint = "have a folder of the host there that root may write and that has room, or choose another path"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=self._where, hint=hint) from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Lock the folder against other processes that install into it, and yield its descriptor. Blocks while another
        process has the lock."""
        folder = os.open(self.here, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder
        finally:
            os.close(folder)

    def _releases(self) -> tuple[HostRelease | None, HostRelease]:
        """Return the current release, and the other of the two releases `a` and `b`. The current release is None if
        nothing is installed."""
        a, b = (HostRelease(here=self.here / name, path=f"{self.path}/{name}") for name in RELEASES)
        if self.here / BIN not in self._links():
            return None, a
        return (a, b) if (self.here / BIN).readlink().parts[0] == RELEASES[0] else (b, a)

    def _links(self) -> list[Path]:
        """Return the symbolic links that lead into the releases. The link bin comes first, because no program is found
        any more once it is removed."""
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
    """Write all cached data of the folder's file system to disk. Raises OSError if the kernel reports an error."""
    if _libc.syncfs(folder) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
