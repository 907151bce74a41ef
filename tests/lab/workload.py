"""The lab's workload image: busybox with the verbs programs, made out of the guest's own root folder.

The programs, their libraries and the user-space drivers are exactly the ones of the guest's suite; nothing is pulled.
"""

import re
import subprocess
from pathlib import Path

from tests.rig.oci import Layer, oci_archive

NAME = "localhost/rdma-workload:1"
_PROGRAMS = ("/usr/bin/ib_send_bw", "/usr/bin/ibv_devinfo", "/usr/bin/rping", "/usr/lib/lab/verbs-probe")
_DRIVERS = ("rxe", "siw")
_OPENED_LATE = "/usr/lib/x86_64-linux-gnu/libgcc_s.so.1"  # by glibc's pthread_exit, which rping calls
_APPLETS = ("cat", "dd", "env", "id", "ls", "mknod", "sh", "sleep", "stat")
_FOLDERS = ("dev", "etc", "proc", "sys", "tmp", "usr", "usr/bin")
_LINKS = {"bin": "usr/bin", "lib": "usr/lib", "lib64": "usr/lib64"}
_CONFIG = {"Entrypoint": ["/bin/sleep", "1000000"], "Env": ["PATH=/usr/bin:/usr/lib/lab"]}


def workload_image(root: Path) -> bytes:
    """An OCI layout tar that `ctr images import` takes."""
    return oci_archive(NAME, workload_layer(root), _CONFIG)


def workload_layer(root: Path) -> Layer:
    """busybox, the verbs programs and everything that the loader and libibverbs open for them."""
    drivers = [path for name in _DRIVERS for path in _driver_files(root, name)]
    paths = {*_PROGRAMS, *drivers, _OPENED_LATE}
    for path in sorted(paths):
        if not path.endswith(".driver"):
            paths |= _libraries(root, path)
    files = {_merged(path): (root / path.lstrip("/")).read_bytes() for path in sorted(paths)}
    files["usr/bin/busybox"] = (root / "usr/bin/busybox").read_bytes()
    links = {**_LINKS, **{f"usr/bin/{name}": "busybox" for name in _APPLETS}}
    return Layer(files=files, links=links, folders=_FOLDERS)


def _driver_files(root: Path, name: str) -> list[str]:
    """The file that names a driver, and the library it names (whose suffix is libibverbs' private version)."""
    registration = f"/etc/libibverbs.d/{name}.driver"
    found = sorted((root / "usr/lib/x86_64-linux-gnu/libibverbs").glob(f"lib{name}-rdmav*.so"))
    return [registration, *(f"/{path.relative_to(root)}" for path in found)]


def _libraries(root: Path, path: str) -> set[str]:
    listing = subprocess.run(["chroot", root, "ldd", path], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(/\S+) \(0x", listing))


def _merged(path: str) -> str:
    """/lib64/ld.so is reached through a link: the file itself lies below /usr."""
    plain = path.lstrip("/")
    top = plain.partition("/")[0]
    return f"usr/{plain}" if top in _LINKS else plain
