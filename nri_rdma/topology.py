"""How far two devices of a node are apart.

The words are those of ``nvidia-smi topo -m``. What decides is the way data takes: through the nearest common switch or
bridge, through the root complex, through the memory of one NUMA node, or over the link between sockets.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol


class Distance(IntEnum):
    """Nearer is smaller."""

    PIX = 1
    """Below one switch or bridge."""
    PXB = 2
    """Over several switches or bridges of one root port."""
    PHB = 3
    """Over the root complex."""
    NODE = 4
    """Over the interconnect of root complexes in one NUMA node."""
    SYS = 5
    """Over the link between NUMA nodes, or nobody knows."""

    @property
    def words(self) -> str:
        """What a person reads in a reason."""
        return _WORDS[self]


_WORDS = {
    Distance.PIX: "PIX, same switch",
    Distance.PXB: "PXB, same root port",
    Distance.PHB: "PHB, same root complex",
    Distance.NODE: "NODE, same NUMA node",
    Distance.SYS: "SYS, elsewhere",
}


class Located(Protocol):
    """What has a place in the PCI tree: an RdmaDevice or a Gpu."""

    @property
    def pci_root(self) -> str: ...

    @property
    def pci_path(self) -> tuple[str, ...]: ...

    @property
    def numa_node(self) -> int | None: ...


def distance(a: Located, b: Located) -> Distance:
    """The distance between two devices. A device without a place in PCI or NUMA is far from everything."""
    if a.pci_root and a.pci_root == b.pci_root:
        return _inside_root(_below_root(a), _below_root(b))
    if a.numa_node is not None and a.numa_node == b.numa_node:
        return Distance.NODE
    return Distance.SYS


def _below_root(device: Located) -> tuple[str, ...]:
    """Root port, bridges and function; the root complex itself may head the path or not."""
    path = device.pci_path
    return path[1:] if path[:1] == (device.pci_root,) else path


def _inside_root(a: tuple[str, ...], b: tuple[str, ...]) -> Distance:
    """A switch is an upstream port with downstream ports: below one switch both have at most a port of their own and
    the function itself behind what they share."""
    shared = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if shared == 0:
        return Distance.PHB
    return Distance.PIX if max(len(a), len(b)) - shared <= 2 else Distance.PXB
