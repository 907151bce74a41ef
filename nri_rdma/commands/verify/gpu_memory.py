"""Reports whether the container's RDMA devices can access the memory of its GPUs directly (GPUDirect RDMA)."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from nri_rdma.config.settings import Settings
from nri_rdma.decide.gpudirect import gpudirect
from nri_rdma.errors import InventoryError
from nri_rdma.host.gpudirect import read_gpudirect
from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import Gpu
from nri_rdma.model.gpudirect import GpuDirect

_FOLDERS = ("", "dri", "accel")
"""The folders below /dev in which GPU drivers create their device nodes."""


def gpudirect_here(settings: Settings, names: Collection[str]) -> tuple[GpuDirect, ...]:
    """Return the state of GPUDirect RDMA between the named devices and the GPUs of this container. A GPU counts if its
    device node is here, because sysfs lists all GPUs of the host."""
    try:
        found = scan(settings.sysfs_root, settings.dev_root, settings.proc_root)
    except InventoryError:
        return ()
    gpus = [gpu for gpu in found.gpus if _is_here(gpu, settings.dev_root)]
    devices = [device for device in found.devices if device.name in names]
    roots = {"sysfs_root": settings.sysfs_root, "proc_root": settings.proc_root, "dev_root": settings.dev_root}
    return gpudirect(gpus, devices, read_gpudirect(gpus, devices, **roots))


def _is_here(gpu: Gpu, dev_root: Path) -> bool:
    return any((dev_root / folder / name).exists() for name in gpu.node_names for folder in _FOLDERS)
