"""The distance between two devices of a node.

The levels are those of ``nvidia-smi topo -m``. They follow the path of the data: through the nearest common switch or
bridge, through the root complex, through the memory of one NUMA node, or over the link between sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Protocol

from nri_rdma.model.device import DeviceId, Gpu, RdmaDevice
from nri_rdma.model.pci import PciAddress, below_root


class Distance(IntEnum):
    """The distance between two devices; smaller is nearer."""

    PIX = 1
    """Below one switch or bridge."""
    PXB = 2
    """Over several switches or bridges of one root port."""
    PHB = 3
    """Over the root complex."""
    NODE = 4
    """Over the interconnect of root complexes in one NUMA node."""
    SYS = 5
    """Over the link between NUMA nodes, or unknown."""

    @property
    def words(self) -> str:
        """The distance as a text, for sentences about why a device was chosen."""
        return _WORDS[self]


_WORDS = {
    Distance.PIX: "PIX, same switch",
    Distance.PXB: "PXB, same root port",
    Distance.PHB: "PHB, same root complex",
    Distance.NODE: "NODE, same NUMA node",
    Distance.SYS: "SYS, elsewhere",
}

FARTHEST_ALIGNED = Distance.PHB
"""The farthest distance at which a device counts as next to a GPU: both are below one root complex. A DRA claim with
matchAttribute pcieRoot demands this, too."""


class Located(Protocol):
    """A device with a place in the PCI tree: an RdmaDevice or a Gpu."""

    @property
    def pci_root(self) -> str: ...

    @property
    def pci_path(self) -> tuple[str, ...]: ...

    @property
    def numa_node(self) -> int | None: ...


def roots(devices: Iterable[Located]) -> frozenset[str]:
    """Return the root complexes of `devices`. Another device counts as next to one of `devices` (FARTHEST_ALIGNED) if
    its own root complex is among the result."""
    return frozenset(device.pci_root for device in devices) - {""}


def distance(a: Located, b: Located) -> Distance:
    """Return the distance between two devices. If neither their root complexes nor their NUMA nodes are known to agree,
    the distance is SYS, the farthest."""
    if a.pci_root and a.pci_root == b.pci_root:
        return _inside_root(a.pci_root, a.pci_path, b.pci_path)
    if a.numa_node is not None and a.numa_node == b.numa_node:
        return Distance.NODE
    return Distance.SYS


def rails(devices: Iterable[RdmaDevice]) -> Mapping[DeviceId, int]:
    """Return the rail of each device: the rank, in PCI order, of its adapter's port among all such ports of the node. A
    rail-optimised fabric connects the first ports of all nodes with each other, their second ports with each other, and
    so on.

    Virtual functions and other devices on a physical function are on that function's rail. Soft devices have no rail.
    """
    places = {device.id: device.virtual.pf if device.virtual is not None else device.pci for device in devices}
    ranks = {pci: rank for rank, pci in enumerate(sorted({pci for pci in places.values() if pci is not None}))}
    return {device_id: ranks[pci] for device_id, pci in places.items() if pci is not None}


def rails_of_gpus(gpus: Iterable[Gpu], count: int) -> Mapping[PciAddress, int]:
    """Return a rail (the rank of a port on the node) for each GPU: the GPUs are divided evenly over `count` rails, in
    PCI order."""
    ordered = sorted(gpus, key=lambda it: it.pci)
    return {gpu.pci: place * count // len(ordered) for place, gpu in enumerate(ordered)}


@lru_cache(maxsize=1 << 14)
def _inside_root(root: str, a: tuple[str, ...], b: tuple[str, ...]) -> Distance:
    """Return the distance of two devices below one root complex, from their PCI paths `a` and `b`. Paths without a
    common bridge meet at the root complex (PHB). Devices below one switch (PIX) differ only in the last two steps: the
    switch's downstream port and the function; all others are PXB."""
    a, b = below_root(root, a), below_root(root, b)
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if shared == 0:
        return Distance.PHB
    return Distance.PIX if max(len(a), len(b)) - shared <= 2 else Distance.PXB
