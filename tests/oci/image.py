"""The one image of these tests, as the file system that `podman import` and `docker import` take."""

import io
import tarfile
from pathlib import Path

IMAGE = "localhost/box:1"
_APPLETS = "sh sleep ls cat ip id env stat mknod echo true basename"
_FOLDERS = ("bin", "dev", "proc", "sys", "tmp", "etc", "run")


def write_root(busybox: Path, target: Path) -> None:
    """Write a tar with busybox and nothing else."""
    with tarfile.open(target, "w") as tar:
        for name in _FOLDERS:
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for applet in _APPLETS.split():
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
        program, data = tarfile.TarInfo("bin/busybox"), busybox.read_bytes()
        program.size, program.mode = len(data), 0o755
        tar.addfile(program, io.BytesIO(data))
