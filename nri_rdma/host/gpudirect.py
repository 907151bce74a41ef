"""Read what this machine shows about GPUDirect RDMA (direct transfers between a NIC and a GPU's memory) in sysfs,
procfs, /boot and /dev."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from nri_rdma.decide.gpudirect import DRIVERS, NVIDIA_PEER_MODULES, OPTIONS, bridges_between
from nri_rdma.host.sysfs.attributes import entries, read
from nri_rdma.model.device import Gpu, RdmaDevice
from nri_rdma.model.gpudirect import GpuDirectFacts, NvidiaDriver
from nri_rdma.model.pci import PciAddress

_RELEASE = re.compile(r"\s(\d{3,4})\.\d")
_OPTION = re.compile(
    rf"^(?:CONFIG_({'|'.join(OPTIONS)})=[ym]|# CONFIG_({'|'.join(OPTIONS)}) is not set)$", re.MULTILINE
)
_DENIES = re.compile(r"^GrdmaPciTopoCheckOverride:\s*2$", re.MULTILINE)
_PEERS = ("kernel/mm/memory_peers", "kernel/memory_peers", "memory_peers")
"""Folders below sysfs that list the clients of peer memory: drivers that let a NIC reach a GPU's memory. The kernel's
release decides which of the folders ib_core creates."""
_FOR_ALL = 64
"""Bytes of a PCI function's configuration space that every user may read; only root can read the rest."""
_EXTENDED = 0x100
_ACS = 0x000D
_ACS_CONTROL = 6
_REDIRECT = 0x04 | 0x08 | 0x20
"""The ACS bits P2P request redirect, completion redirect and egress control. The kernel's function
pci_bridge_has_acs_redir (drivers/pci/p2pdma.c) tests these bits."""


def read_gpudirect(
    gpus: Iterable[Gpu],
    devices: Iterable[RdmaDevice],
    *,
    sysfs_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
    dev_root: Path = Path("/dev"),
    boot: Path = Path("/boot"),
) -> GpuDirectFacts:
    """Return the facts about GPUDirect RDMA for these GPUs and RDMA devices. The ACS settings of bridges can be read by
    root only.

    Never raises: a missing file counts as an absent feature.
    """
    gpus, devices = tuple(gpus), tuple(devices)
    functions = [gpu.pci for gpu in gpus] + [device.pci for device in devices if device.pci is not None]
    pci = f"{sysfs_root}/bus/pci/devices"
    return GpuDirectFacts(
        modules=frozenset(entries(f"{sysfs_root}/module")) & (DRIVERS | NVIDIA_PEER_MODULES),
        peer_clients=frozenset(name for folder in _PEERS for name in entries(f"{sysfs_root}/{folder}")),
        nvidia=_nvidia(read(f"{proc_root}/driver/nvidia/version")),
        nvidia_denies=_DENIES.search(read(f"{proc_root}/driver/nvidia/params")) is not None,
        options=_options(proc_root, boot),
        has_gdrdrv=(dev_root / "gdrdrv").exists(),
        iommu=dict(_iommu(pci, functions)),
        acs_redirects={
            bridge: redirects_peers(Path(pci, bridge, "config")) for bridge in bridges_between(gpus, devices)
        },
    )


def _nvidia(version: str) -> NvidiaDriver | None:
    """Parse the version line of NVIDIA's driver; None if the driver is not loaded.

    The open driver writes ``NVRM version: NVIDIA UNIX Open Kernel Module for x86_64 580.159.04 Release``. The
    proprietary driver writes ``NVIDIA UNIX x86_64 Kernel Module 535.129.03``.
    """
    if not version:
        return None
    line = version.splitlines()[0]
    found = _RELEASE.search(line)
    return NvidiaDriver(release=int(found.group(1)) if found else 0, is_open="Open Kernel Module" in line)


def _options(proc_root: Path, boot: Path) -> Mapping[str, bool] | None:
    """Return the build options of the running kernel, from /proc/config.gz or /boot/config-RELEASE; None if neither can
    be read."""
    release = read(f"{proc_root}/sys/kernel/osrelease")
    for file in (proc_root / "config.gz", boot / f"config-{release}"):
        try:
            content = file.read_bytes()
            text = (gzip.decompress(content) if file.suffix == ".gz" else content).decode(errors="replace")
        except (OSError, EOFError, zlib.error):
            continue
        return {on or off: bool(on) for on, off in _OPTION.findall(text)}
    return None


def _iommu(pci: str, functions: Iterable[PciAddress]) -> Iterator[tuple[PciAddress, str]]:
    for address in functions:
        if kind := read(f"{pci}/{address}/iommu_group/type"):
            yield address, kind


def redirects_peers(config: Path) -> bool | None:
    """Return whether a PCI bridge redirects peer-to-peer traffic, by the ACS capability in its configuration space.

    `config` is the bridge's `config` file in sysfs. None if this user cannot read the file, or only its first bytes.
    """
    try:
        content = config.read_bytes()
    except OSError:
        return None
    if len(content) <= _FOR_ALL:
        return None
    place, seen = _EXTENDED, set[int]()
    while _EXTENDED <= place <= len(content) - 8 and place not in seen:
        seen.add(place)
        header = int.from_bytes(content[place : place + 4], "little")
        if header & 0xFFFF == _ACS:
            at = place + _ACS_CONTROL
            return bool(int.from_bytes(content[at : at + 2], "little") & _REDIRECT)
        place = header >> 20 & 0xFFC
    return False
