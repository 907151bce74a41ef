"""How the devices and GPUs of a node lie to each other.

It is worked out once for each reading of the node, and kept: pods that start wait for their placement.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from nri_rdma.decide.topology import Distance, distance, rails, rails_of_gpus
from nri_rdma.model.device import DeviceId, Node, RdmaDevice
from nri_rdma.model.pci import PciAddress, below_root
from nri_rdma.model.same import Same

_LEAST_PATH = 3
"""Root port, bridges, function: a shorter path has no switch in it."""
READINGS_KEPT = 2
"""The present reading, and one before it that a placement may still be using."""

Groups = Mapping[DeviceId, tuple[int, int, int]]
"""The numbers of the groups of each device: below its switch, below its root complex, on its NUMA node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The distance of each device from each GPU, the rails of both, and the groups of the devices."""

    far: Mapping[PciAddress, Mapping[DeviceId, Distance]]
    rails: Mapping[DeviceId, int]
    rail_of_gpu: Mapping[PciAddress, int]
    groups: Groups


def layout_of(node: Node) -> Layout:
    """Return the layout of a reading of the node."""
    return _layout(Same(node))


@lru_cache(maxsize=READINGS_KEPT)
def _layout(same: Same[Node]) -> Layout:
    node = same.value
    return Layout(
        far={gpu.pci: {device.id: distance(device, gpu) for device in node.devices} for gpu in node.gpus},
        rails=rails(node.devices),
        rail_of_gpu=rails_of_gpus(node),
        groups=groups_of(node.devices),
    )


def groups_of(devices: Iterable[RdmaDevice]) -> Groups:
    """Return the groups of each device. Those of two kinds never have the same number."""
    numbers: defaultdict[tuple[object, ...], int] = defaultdict(count().__next__)
    found = {}
    for device in devices:
        numa_node, root, _port, switch = branch(device)
        found[device.id] = numbers[switch], numbers[root], numbers[numa_node]
    return found


def branch(device: RdmaDevice) -> tuple[tuple[object, ...], ...]:
    """Return a device's NUMA node, root complex, root port and switch; a device without a place is alone in these."""
    place, path = device.pci_root or device.id, below_root(device.pci_root, device.pci_path)
    switch = path[:-2] if len(path) >= _LEAST_PATH else path[:-1]
    numa_node = ("NUMA", place if device.numa_node is None else device.numa_node)
    return numa_node, (place,), (place, path[:1]), (place, switch)
