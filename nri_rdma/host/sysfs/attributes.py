"""Reads single attributes and paths in sysfs.

Folders are strings here, not Paths: the node is read again for every pod that comes and goes, and with Paths this took
five times as long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from nri_rdma.host.kernel_file import read_text
from nri_rdma.model.pci import parse_pci_address

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def entries(folder: str) -> list[str]:
    """Return the names in a folder, in no particular order; [] if the folder is missing."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names sorted by their numbers: ``mlx5_2`` before ``mlx5_10``."""
    return sorted(names, key=_natural)


def read(path: str) -> str:
    """Return the text of an attribute; "" if it is missing or cannot be read. The kernel answers EINVAL for unused
    GIDs, for example."""
    try:
        return read_text(path)
    except OSError:
        return ""


def read_of(folder: str, name: str) -> str:
    """Return the text of an attribute in a folder; "" if the folder is "" or the attribute cannot be read."""
    return read(f"{folder}/{name}") if folder else ""


def destination(folder: str, link: str) -> str:
    """Return the folder to which the symbolic link `link` in `folder` leads; "" if it does not exist or `folder` is "".
    An entry that is itself a folder is returned unchanged.

    If `folder` has no symbolic link in its path, the result has none, because links in sysfs lead directly to the
    device's folder.
    """
    if not folder:
        return ""
    path = f"{folder}/{link}"
    try:
        path = os.path.normpath(os.path.join(folder, os.readlink(path)))
    except FileNotFoundError:
        return ""
    except OSError:
        pass  # EINVAL: no link
    return path if os.path.exists(path) else ""


def whole_number(text: str) -> int | None:
    """Parse a decimal number without a sign; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() else None


def numbers(text: str) -> tuple[int, int] | None:
    """Return the major and minor number from the text of a ``dev`` attribute (``231:192``); None for any other text."""
    major, minor = (whole_number(part) for part in text.partition(":")[::2])
    return None if major is None or minor is None else (major, minor)


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the first and last CPU of each range in a list such as ``0-47,96``. Invalid ranges are left out."""
    ends = (part.partition("-") for part in text.strip().split(","))
    pairs = ((whole_number(first), whole_number(last or first)) for first, _, last in ends)
    return tuple((first, last) for first, last in pairs if first is not None and last is not None)


def pci_path(place: str) -> tuple[str, ...]:
    """Return the names of the PCI root complex, the bridges and the function on the path of a device's folder `place`;
    () if the device is not on PCI."""
    parts = place.split("/")
    root = next((number for number, part in enumerate(parts) if _PCI_ROOT.fullmatch(part)), None)
    if root is None:
        return ()
    return (parts[root], *(part for part in parts[root + 1 :] if parse_pci_address(part) is not None))


def function_of(place: str) -> str:
    """Return the folder of the PCI function to which a device belongs, which may be the device itself; the device's own
    folder if it is not on PCI. `place` is the device's folder.

    Callers read the NUMA node and the vendor there, which a device below a function (a scalable function, for example)
    lacks.
    """
    folder = place
    while folder.strip("/"):
        folder, _, name = folder.rpartition("/")
        if parse_pci_address(name) is not None:
            return f"{folder}/{name}"
    return place


def numa_node(place: str) -> int | None:
    """Return the NUMA node of the device in the folder `place`; None if the kernel reports none, which it writes as
    -1."""
    return whole_number(read_of(place, "numa_node"))


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"[0-9]+|[^0-9]+", name)  # `\d` would also match non-ASCII digits
    return tuple((0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts)
