"""Reads the GPUs of a node, with the names by which drivers and device plugins know them.

Every GPU has its PCI location in sysfs. NVIDIA's driver lists in procfs the names that its tools and device plugins
use; other GPUs are known by their device files in the kernel's classes drm and accel. If no driver is loaded, only the
location is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nri_rdma.host.sysfs.attributes import (
    destination,
    entries,
    in_order,
    numa_node,
    numbers,
    pci_path,
    read,
    read_of,
    whole_number,
)
from nri_rdma.model.device import Gpu
from nri_rdma.model.pci import PciAddress, parse_pci_address

_CLASSES = ("0x0302", "0x0380", "0x1200")  # 3D controller, display controller, processing accelerator
_VGA_CLASS = "0x0300"
_VENDORS = ("10de", "1002")  # a VGA controller of another vendor is the machine's console
_NVIDIA = "10de"
_NVIDIA_MAJOR = 195  # Documentation/admin-guide/devices.txt
_NVIDIA_DRIVERS = ("nvidia-frontend", "nvidia")  # in /proc/devices, before and since release 550
_NODE_CLASSES = ("drm", "accel")
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Matches the UUID of an NVIDIA GPU. The driver shows question marks instead until it has initialised the GPU."""

_Node = tuple[str, tuple[int, int]]
"""The name of a device file without its folder, and its major and minor number."""


def read_gpus(sysfs_root: Path, proc_root: Path | None) -> tuple[Gpu, ...]:
    """Return all GPUs, sorted by PCI address. `proc_root` is the procfs with the names and UUIDs of NVIDIA's driver;
    None: they are not read."""
    major = _nvidia_major(proc_root) if proc_root is not None else _NVIDIA_MAJOR
    functions = os.path.join(os.path.realpath(sysfs_root), "bus/pci/devices")
    gpus = (_gpu(functions, name, proc_root, major) for name in entries(functions))
    return tuple(sorted((gpu for gpu in gpus if gpu is not None), key=lambda gpu: gpu.pci))


def _gpu(functions: str, name: str, proc_root: Path | None, nvidia_major: int) -> Gpu | None:
    kind = read(f"{functions}/{name}/class")[:6]
    if kind not in _CLASSES and kind != _VGA_CLASS:  # most PCI functions are no GPUs
        return None
    folder = destination(functions, name)
    address, vendor = parse_pci_address(name), read_of(folder, "vendor").removeprefix("0x")
    if address is None or not folder or (kind == _VGA_CLASS and vendor not in _VENDORS):
        return None
    told = _told_by_nvidia(proc_root, address) if proc_root is not None and vendor == _NVIDIA else {}
    nodes = [*_nvidia_node(told, nvidia_major), *_class_nodes(folder)]
    uuid = told.get("GPU UUID", "")
    path = pci_path(folder)
    return Gpu(
        pci=address,
        pci_root=path[0] if path else "",
        pci_path=path[1:],
        numa_node=numa_node(folder),
        vendor=vendor,
        uuid=uuid if _UUID.fullmatch(uuid) else "",
        node_names=tuple(name for name, _ in nodes),
        nodes=tuple(dev for _, dev in nodes),
    )


def _class_nodes(folder: str) -> Iterator[_Node]:
    """Yield the device files of a GPU in the classes drm and accel: ``card1`` and ``renderD128``, or ``accel0``."""
    for class_name in _NODE_CLASSES:
        for name in in_order(entries(f"{folder}/{class_name}")):
            dev = numbers(read(f"{folder}/{class_name}/{name}/dev"))
            if dev is not None:
                yield name, dev


def _told_by_nvidia(proc_root: Path, address: PciAddress) -> dict[str, str]:
    lines = read(f"{proc_root}/driver/nvidia/gpus/{address}/information").splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _nvidia_node(told: dict[str, str], major: int) -> Iterator[_Node]:
    """Yield the device file of an NVIDIA GPU (``nvidia3``). `told` are the GPU's properties as its driver shows them in
    procfs. The driver chooses the file's number, which is not the GPU's position in a list."""
    minor = whole_number(told.get("Device Minor", ""))
    if minor is not None:
        yield f"nvidia{minor}", (major, minor)


def _nvidia_major(proc_root: Path) -> int:
    for line in read(f"{proc_root}/devices").partition("Block devices:")[0].splitlines():
        major, _, name = line.strip().partition(" ")
        if name in _NVIDIA_DRIVERS and major.isdigit():
            return int(major)
    return _NVIDIA_MAJOR
