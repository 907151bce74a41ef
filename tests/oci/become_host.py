"""Makes this process's mount namespace, which must be its own, that of a host out of a root folder, and stays there.

`become_host.py ROOT WORK INFINIBAND SHARED=PLACE...`: WORK is a folder in memory, INFINIBAND becomes /dev/infiniband,
each SHARED folder is at PLACE too. The root folder itself stays as it is. Standard library only.
"""

import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

_NODES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_UNIFIED = "sys/fs/cgroup/unified"


def main() -> None:
    """Mount, pivot, say so, and wait for the end."""
    root, work, infiniband = (Path(it) for it in sys.argv[1:4])
    new = work / "root"
    for folder in (new, work / "upper", work / "work"):
        folder.mkdir()
    _mount("-t", "overlay", "-o", f"lowerdir={root},upperdir={work}/upper,workdir={work}/work", "overlay", new)
    _mount("-t", "proc", "proc", new / "proc")
    _mount("-t", "sysfs", "sysfs", new / "sys")
    _mount("--rbind", "/sys/fs/cgroup", new / "sys/fs/cgroup")
    if (new / _UNIFIED).is_dir():  # crun refuses a hybrid of both versions
        subprocess.run(["umount", new / _UNIFIED], check=True)
    _make_dev(new / "dev", infiniband)
    for place in ("run", "tmp"):
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", new / place)
    for pair in sys.argv[4:]:
        shared, _, place = pair.partition("=")
        inside = new / place.lstrip("/")
        inside.mkdir(parents=True, exist_ok=True)
        _mount("--bind", shared, inside)
    (new / "mnt/old").mkdir()
    subprocess.run(["pivot_root", new, new / "mnt/old"], check=True)
    os.chdir("/")
    subprocess.run(["umount", "-l", "/mnt/old"], check=True)
    print("ready", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


def _make_dev(dev: Path, infiniband: Path) -> None:
    _mount("-t", "tmpfs", "-o", "mode=755", "dev", dev)
    for name in _NODES:
        state = Path("/dev", name).stat()
        os.mknod(dev / name, state.st_mode, state.st_rdev)
        (dev / name).chmod(stat.S_IMODE(state.st_mode))
    for name, target in _LINKS.items():
        (dev / name).symlink_to(target)
    for name in ("pts", "shm", "mqueue", "infiniband"):
        (dev / name).mkdir()
    _mount("-t", "devpts", "-o", "newinstance,ptmxmode=0666,mode=620", "devpts", dev / "pts")
    (dev / "ptmx").symlink_to("pts/ptmx")
    _mount("-t", "tmpfs", "shm", dev / "shm")
    _mount("-t", "mqueue", "mqueue", dev / "mqueue")
    _mount("--bind", infiniband, dev / "infiniband")


def _mount(*arguments: str | Path) -> None:
    subprocess.run([shutil.which("mount") or "mount", *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
