"""The node of a simulation, twice: as the product knows it, read from a sysfs tree, and as the description of the node
says who is below which bridge. What judges the product knows only the latter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Self

from nri_rdma.host.sysfs.scan import scan
from nri_rdma.model.device import Netdev, Node, RdmaDevice
from tests.rig import node as rig
from tests.rig.systree import build_tree

_GPU_CLASS = "0x030200"


class Far(IntEnum):
    """How far a NIC and a GPU are apart, in the words of nvidia-smi."""

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5


ALIGNED = Far.PHB
"""The farthest that counts as aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """`far` has every pair of a NIC's name and a GPU's address."""

    node: Node
    nics: tuple[str, ...]
    gpus: tuple[str, ...]
    far: Mapping[tuple[str, str], Far]

    @classmethod
    def of(cls, described: rig.Node) -> Self:
        """The node of a description."""
        functions = {it.function: it.name for it in described.rdma}
        gpus = tuple(it.address for it in described.functions if it.pci_class == _GPU_CLASS)
        return cls(
            node=read(described),
            nics=tuple(functions.values()),
            gpus=gpus,
            far={(name, gpu): _far(described, nic, gpu) for nic, name in functions.items() for gpu in gpus},
        )

    def is_aligned(self, nic: str, gpu: str) -> bool:
        """Whether they are below one root complex."""
        return self.far[nic, gpu] <= ALIGNED


def read(described: rig.Node) -> Node:
    """What the product reads of such a node; every netdev is on the host and unused."""
    with tempfile.TemporaryDirectory(prefix="nri-rdma-node-") as folder:
        build_tree(described, Path(folder, "sys"))
        found = scan(Path(folder, "sys"), Path(folder, "dev"))
    return Node(
        devices=tuple(_with_netdevs(device, found.netdev_names[device.id]) for device in found.devices),
        gpus=found.gpus,
        rdma_cm=found.rdma_cm,
        rdma_netns=found.rdma_netns,
        rdma_cgroup=True,
    )


def _with_netdevs(device: RdmaDevice, names: tuple[str, ...]) -> RdmaDevice:
    netdevs = (Netdev(name=name, ifindex=100 + device.index, mac="", mtu=1500, up=True) for name in names)
    return replace(device, netdevs=tuple(netdevs))


def _far(described: rig.Node, nic: str, gpu: str) -> Far:
    """By the first that both are below: a bridge, a root complex, or nothing."""
    above = {it.address: it.under for it in described.functions}
    numa = {it.address: it.numa_node for it in described.functions}
    mine, its = list(_upwards(above, nic)), list(_upwards(above, gpu))
    shared = next((it for it in mine if it in its), None)
    if shared is None:
        return Far.NODE if numa[nic] == numa[gpu] >= 0 else Far.SYS
    if shared not in above:
        return Far.PHB
    between = max(mine.index(shared), its.index(shared))
    return Far.PIX if between <= 1 else Far.PXB


def _upwards(above: Mapping[str, str], function: str) -> Iterator[str]:
    while function in above:
        function = above[function]
        yield function
