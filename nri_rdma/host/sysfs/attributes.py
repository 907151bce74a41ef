"""Attributes and places in sysfs, read once.

Folders are texts here, not Paths: a node is read again for every pod that comes and goes, and with Paths that took five
times as long.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from nri_rdma.host.kernel_file import read_text
from nri_rdma.model.pci import parse_pci_address

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def entries(folder: str) -> list[str]:
    """Return the names in a folder, in no order; [] for a missing folder."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def in_order(names: Iterable[str]) -> list[str]:
    """Return the names in the order of their numbers: ``mlx5_2`` before ``mlx5_10``."""
    return sorted(names, key=_natural)


def read(path: str) -> str:
    """Return the text of an attribute; "" where the kernel has none (missing, or refused with EINVAL as unused GIDs
    are)."""
    try:
        return read_text(path)
    except OSError:
        return ""


def read_of(folder: str, name: str) -> str:
    """Return the text of an attribute in a folder that may be missing (""): then ""."""
    return read(f"{folder}/{name}") if folder else ""


def destination(folder: str, link: str) -> str:
    """Return the folder that a link in a folder leads to, or the entry itself when it is a folder; "" when there is
    none, also when `folder` is missing (""). `folder` has no link in its path, nor has the result: links of sysfs lead
    to the device itself."""
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
    """Parse a number without sign; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() else None


def numbers(text: str) -> tuple[int, int] | None:
    """Return major and minor of a ``dev`` attribute (``231:192``); None for anything else."""
    major, minor = (whole_number(part) for part in text.partition(":")[::2])
    return None if major is None or minor is None else (major, minor)


def ranges(text: str) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a list of CPUs (``0-47,96``), each with both ends; what is no range is left out."""
    ends = (part.partition("-") for part in text.strip().split(","))
    pairs = ((whole_number(first), whole_number(last or first)) for first, _, last in ends)
    return tuple((first, last) for first, last in pairs if first is not None and last is not None)


def pci_path(place: str) -> tuple[str, ...]:
    """Return root complex, bridges and function that lead to a device's folder; empty when the device is not on PCI."""
    parts = place.split("/")
    root = next((number for number, part in enumerate(parts) if _PCI_ROOT.fullmatch(part)), None)
    if root is None:
        return ()
    return (parts[root], *(part for part in parts[root + 1 :] if parse_pci_address(part) is not None))


def function_of(place: str) -> str:
    """Return the folder of the PCI function that a device is, or is a part of: a scalable function is an auxiliary
    device, which has neither NUMA node nor vendor. The device itself when it is not on PCI."""
    folder = place
    while folder.strip("/"):
        folder, _, name = folder.rpartition("/")
        if parse_pci_address(name) is not None:
            return f"{folder}/{name}"
    return place


def numa_node(place: str) -> int | None:
    """Return the NUMA node of a device; None when sysfs has none (place: ""), and for -1, the kernel's value on a
    machine with one node."""
    return whole_number(read_of(place, "numa_node"))


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.findall(r"[0-9]+|[^0-9]+", name)  # a name may have digits that are no ASCII
    return tuple((0, int(part), "") if part[0] in "0123456789" else (1, 0, part) for part in parts)
