"""The first root file system of the lab's machine: a shell, a few modules, a script.

Debian's own initrd holds udev and every driver: 20 s to build and several to boot under emulation. The lab knows its
machine: it needs virtio_blk and ext4, mounts the root disk, unpacks the checkout into it and starts the guest's init.
Disks are told apart by their serial number, never by their order.
"""

import io
import lzma
import stat
from pathlib import Path

from tests.lab.errors import LabError

MODULES = ("virtio_blk", "ext4")
IF_PRESENT = (
    "virtio_pci",  # a module until Debian's 6.1, and part of the kernel since; so is the next
    "virtio_console",  # guest/init.py speaks over a port of it before it loads anything
    "crc32c_generic",  # ext4 asks the crypto layer for it, until the checksum became part of the kernel
)
_INIT = """#!/bin/busybox sh
export PATH=/bin
busybox mkdir -p /proc /sys /dev /newroot
busybox mount -t proc proc /proc
busybox mount -t sysfs sys /sys
busybox mount -t devtmpfs dev /dev
for module in /modules/*; do busybox insmod "$module" || echo "lab: initrd: insmod $module failed"; done
root= job=
for disk in /sys/block/vd*; do
  case "$(busybox cat "$disk/serial")" in
    root) root=/dev/${disk##*/} ;;
    job) job=/dev/${disk##*/} ;;
  esac
done
echo "lab: initrd: root disk '$root', job disk '$job'"
busybox mount -t ext4 "$root" /newroot || exit 1
busybox mkdir -p /newroot/srv/lab
busybox tar -xf "$job" -C /newroot/srv/lab || exit 1
busybox umount /sys /proc
exec busybox switch_root /newroot /usr/bin/python3 -B /srv/lab/checkout/tests/lab/guest/init.py
"""


def build_initrd(root: Path, release: str) -> bytes:
    """A cpio archive with busybox and the modules of kernel `release`, both out of the root folder."""
    archive = _Cpio()
    archive.folder("bin")
    archive.folder("modules")
    archive.file("bin/busybox", (root / "usr/bin/busybox").read_bytes(), 0o755)
    modules = root / "usr/lib/modules" / release
    order = load_order((modules / "modules.dep").read_text(), MODULES, IF_PRESENT)
    for number, path in enumerate(order):
        archive.file(f"modules/{number:02}-{Path(path).stem.split('.')[0]}.ko", _plain_module(modules / path), 0o644)
    archive.file("init", _INIT.encode(), 0o755)
    return archive.close()


def load_order(modules_dep: str, wanted: tuple[str, ...], if_present: tuple[str, ...] = ()) -> list[str]:
    """Paths of the wanted modules and all they need, each after what it needs (the format of depmod's modules.dep).

    Those of `if_present` come first, where the kernel has them.
    """
    needs = {path: rest.split() for path, _, rest in (line.partition(":") for line in modules_dep.splitlines())}
    by_name = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order: list[str] = []
    for name in (*(name for name in if_present if name in by_name), *wanted):
        if name not in by_name:
            raise LabError(
                f"the kernel has no module {name}. Next: is it built in? Then take it out of initrd.MODULES."
            )
        # modules.dep lists the whole closure, the deepest dependency last
        for path in (*reversed(needs[by_name[name]]), by_name[name]):
            if path not in order:
                order.append(path)
    return order


def _plain_module(path: Path) -> bytes:
    """busybox's insmod hands the file to the kernel as it is: it must not be compressed."""
    data = path.read_bytes()
    if path.suffix == ".ko":
        return data
    if path.suffix == ".xz":
        return lzma.decompress(data)
    raise LabError(f"{path.name} is compressed in a way the lab does not know. Next: teach initrd._plain_module.")


class _Cpio:
    """Writer of the "newc" format (Linux: Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._inode = 0

    def folder(self, name: str) -> None:
        self._entry(name, b"", stat.S_IFDIR | 0o755)

    def file(self, name: str, data: bytes, mode: int) -> None:
        self._entry(name, data, stat.S_IFREG | mode)

    def close(self) -> bytes:
        self._entry("TRAILER!!!", b"", 0)
        return self._out.getvalue()

    def _entry(self, name: str, data: bytes, mode: int) -> None:
        self._inode += 1
        links, owner, group, time_s, major, minor, special_major, special_minor, checksum = 1, 0, 0, 0, 0, 0, 0, 0, 0
        size_of_name = len(name.encode()) + 1
        place = (major, minor, special_major, special_minor)
        header = (self._inode, mode, owner, group, links, time_s, len(data), *place, size_of_name, checksum)
        self._padded(b"070701" + b"".join(b"%08X" % number for number in header) + name.encode() + b"\0")
        self._padded(data)

    def _padded(self, data: bytes) -> None:
        self._out.write(data + b"\0" * (-len(data) % 4))
