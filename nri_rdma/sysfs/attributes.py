"""Attributes and places in sysfs, read once."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nri_rdma.model.pci import parse_pci_address

_PCI_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_ATTRIBUTE_BYTES = 1 << 16
"""The kernel's attributes are a page at most, which is 4 KiB, on some machines 64."""


def entries(folder: Path) -> list[Path]:
    """What is in a folder, in no order; [] where there is none."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def read(path: Path | str) -> str:
    """The text of an attribute; "" where the kernel has none (missing, or refused with EINVAL as unused GIDs are).

    By system calls: file objects would be a third of a scan, and half of one that reads a whole GID table."""
    try:
        attribute = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(attribute, _ATTRIBUTE_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(attribute)


def whole_number(text: str) -> int | None:
    """A number without sign; None for anything else."""
    return int(text) if text.isascii() and text.isdigit() else None


def numbers(text: str) -> tuple[int, int] | None:
    """Major and minor of a ``dev`` attribute (``231:192``); None for anything else."""
    major, minor = (whole_number(part) for part in text.partition(":")[::2])
    return None if major is None or minor is None else (major, minor)


def link_name(path: Path) -> str:
    """The name of what a link leads to; "" where there is none."""
    return path.resolve().name if path.exists() else ""


def pci_path(device: Path) -> tuple[str, ...]:
    """Root complex, bridges and function that lead to a device; empty when it is not on PCI."""
    if not device.exists():
        return ()
    parts = device.resolve().parts
    root = next((place for place, part in enumerate(parts) if _PCI_ROOT.fullmatch(part)), None)
    if root is None:
        return ()
    return (parts[root], *(part for part in parts[root + 1 :] if parse_pci_address(part) is not None))


def function_of(device: Path) -> Path:
    """The PCI function that a device is, or is a part of: a scalable function is an auxiliary device, which has neither
    NUMA node nor vendor. The device itself when it is not on PCI, or not there."""
    if not device.exists():
        return device
    place = device.resolve()
    return next((it for it in (place, *place.parents) if parse_pci_address(it.name) is not None), device)


def numa_node(device: Path) -> int | None:
    """None also for -1, the kernel's word for a machine of one node."""
    return whole_number(read(device / "numa_node"))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts ``mlx5_2`` before ``mlx5_10``."""
    parts = re.findall(r"\d+|\D+", name)
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts)
