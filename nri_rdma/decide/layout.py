"""The positions of a node's devices and GPUs (distances, groups and rails), and the devices that cannot carry data.

All of this is computed when the node is read and kept for later placements, because each starting pod waits for its
placement. A place is a position in the PCI tree and has a number. The devices of one place are equally far from every
GPU and are in equal groups; hundreds of virtual functions share one place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Self

from nri_rdma.decide.share_requests import is_up_in
from nri_rdma.decide.topology import Distance, distance, rails, rails_of_gpus
from nri_rdma.model.device import DeviceId, Node, RdmaDevice
from nri_rdma.model.pci import PciAddress, below_root
from nri_rdma.model.request import Mode
from nri_rdma.model.same import Same

_LEAST_PATH = 3
"""The fewest steps of a PCI path with a switch: root port, bridge and function."""
READINGS_KEPT = 2
"""The number of readings of the node whose results are cached: the newest, and the one before it, which a running
placement may still use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The places of devices. A place is a position in the PCI tree and has a number. `of` has the place of each device;
    `groups` has for each place three numbers: its switch, its root complex and its NUMA node."""

    of: Mapping[DeviceId, int]
    groups: tuple[tuple[int, int, int], ...]
    samples: tuple[RdmaDevice, ...]
    """One device of each place, in the order of the numbers of the places."""

    @classmethod
    def of_devices(cls, devices: Iterable[RdmaDevice]) -> Self:
        """Number the places (positions in the PCI tree) of these devices. Devices below one bridge and on one NUMA node
        share a place."""
        numbers: dict[object, int] = {}
        of: dict[DeviceId, int] = {}
        samples: list[RdmaDevice] = []
        for device in devices:
            key = (device.pci_root or device.id, device.pci_path[:-1], device.numa_node)
            number = numbers.setdefault(key, len(numbers))
            of[device.id] = number
            if number == len(samples):
                samples.append(device)
        return cls(of=of, groups=_groups(samples), samples=tuple(samples))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The positions of a node's devices and GPUs: the place of each device in the PCI tree, the distance of each GPU
    from each place, and the rails. A rail is the rank of a port among the ports of the node."""

    places: Places
    far: Mapping[PciAddress, tuple[Distance, ...]]
    """By GPU: its distance from each place, in the order of the numbers of the places."""
    rails: Mapping[DeviceId, int]
    rail_of_gpu: Mapping[PciAddress, int]
    down: Mapping[Mode, frozenset[DeviceId]]
    """By mode: the devices that cannot carry data in a pod that has them in this mode."""

    def distance(self, gpu: PciAddress, device: DeviceId) -> Distance:
        """Return how far data travels between a device and a GPU of this node, from PIX (below one switch) to SYS.
        Raise KeyError if the node had no such GPU or device when it was read."""
        return self.far[gpu][self.places.of[device]]


def layout_of(node: Node) -> Layout:
    """Return the layout of a node. It is computed once for each reading of the node, and kept for the newest
    readings."""
    return _layout(Same(node))


@lru_cache(maxsize=READINGS_KEPT)
def _layout(reading: Same[Node]) -> Layout:
    node = reading.value
    places, rail_of = Places.of_devices(node.devices), rails(node.devices)
    return Layout(
        places=places,
        far={gpu.pci: tuple(distance(device, gpu) for device in places.samples) for gpu in node.gpus},
        rails=rail_of,
        rail_of_gpu=rails_of_gpus(node.gpus, len(set(rail_of.values()))),
        down={mode: frozenset(it.id for it in node.devices if not is_up_in(it, mode)) for mode in Mode},
    )


def _groups(devices: Iterable[RdmaDevice]) -> tuple[tuple[int, int, int], ...]:
    numbers: defaultdict[tuple[object, ...], int] = defaultdict(count().__next__)
    branches = map(branch, devices)
    return tuple((numbers[switch], numbers[root], numbers[numa_node]) for numa_node, root, _, switch in branches)


def branch(device: RdmaDevice) -> tuple[tuple[object, ...], ...]:
    """Return the groups of a device: its NUMA node, root complex, root port and switch, each as a key that is equal for
    all devices of the group. A device without a position on PCI is alone in its groups."""
    place, path = device.pci_root or device.id, below_root(device.pci_root, device.pci_path)
    switch = path[:-2] if len(path) >= _LEAST_PATH else path[:-1]
    numa_node = ("NUMA", place if device.numa_node is None else device.numa_node)
    return numa_node, (place,), (place, path[:1]), (place, switch)
