"""A command that has a /dev/infiniband of its own, in a mount namespace: `private_dev.py FOLDER COMMAND [ARGUMENT...]`.

Everything else below /dev is the machine's; the machine's own /dev stays as it is. Standard library only.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

_DEV = Path("/dev")
_OWN = "infiniband"


def wrapped(folder: Path, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command that runs this one, in the same process, with the folder as its /dev/infiniband."""
    unshare = ("unshare", "--mount", "--propagation", "private")
    return (*unshare, sys.executable, "-IS", str(Path(__file__).resolve()), str(folder), *command)


def build(folder: Path) -> None:
    """Mount another /dev in this process's mount namespace, which must be its own."""
    new = folder.with_name(f"{folder.name}.dev")
    new.mkdir()
    _mount("-t", "tmpfs", "-o", "mode=755", "dev", str(new))
    for entry in _DEV.iterdir():
        if entry.name != _OWN:
            _copy(entry, new / entry.name)
    (new / _OWN).mkdir()
    _mount("--bind", str(folder), str(new / _OWN))
    _mount("--move", str(new), str(_DEV))


def _copy(entry: Path, to: Path) -> None:
    status = entry.lstat()
    if stat.S_ISLNK(status.st_mode):
        to.symlink_to(entry.readlink())
    elif stat.S_ISDIR(status.st_mode):
        to.mkdir()
        _mount("--rbind", str(entry), str(to))
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        os.mknod(to, status.st_mode, status.st_rdev)
        to.chmod(stat.S_IMODE(status.st_mode))  # whatever the umask


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
