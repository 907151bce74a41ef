"""Where the devices and GPUs of a node are: distances, groups and rails; and which devices cannot carry data.

All of it is worked out when the node is read, and kept for the pods that start afterwards: each waits for its
placement. Devices are numbered by their place. Those of one place are equally far from every GPU, and in the same
groups: virtual functions by the hundred are in one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Self

from nri_rdma.decide.shares import is_up_in
from nri_rdma.decide.topology import Distance, distance, rails, rails_of_gpus
from nri_rdma.model.device import DeviceId, Node, RdmaDevice
from nri_rdma.model.pci import PciAddress, below_root
from nri_rdma.model.request import Mode
from nri_rdma.model.same import Same

_LEAST_PATH = 3
"""Root port, bridges, function: a shorter path has no switch in it."""
READINGS_KEPT = 2
"""The newest reading of the node, and the one before it, which a placement may still be using."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The place of each device, by number; and of each place the groups that it is in, as the numbers of its switch,
    its root complex and its NUMA node. Groups of two kinds never have the same number."""

    of: Mapping[DeviceId, int]
    groups: tuple[tuple[int, int, int], ...]
    samples: tuple[RdmaDevice, ...]
    """A device of each place."""

    @classmethod
    def of_devices(cls, devices: Iterable[RdmaDevice]) -> Self:
        """Return the places of these devices."""
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
    """The places of a node's devices, the distance of each GPU from each place, and the rails of devices and GPUs."""

    places: Places
    far: Mapping[PciAddress, tuple[Distance, ...]]
    """By GPU, and in it by the number of the place."""
    rails: Mapping[DeviceId, int]
    rail_of_gpu: Mapping[PciAddress, int]
    down: Mapping[Mode, frozenset[DeviceId]]
    """The devices that cannot carry data in a pod, by the mode in which it has them."""

    def distance(self, gpu: PciAddress, device: DeviceId) -> Distance:
        """Return the distance of a device from a GPU."""
        return self.far[gpu][self.places.of[device]]


def layout_of(node: Node) -> Layout:
    """Return the layout of a reading of the node."""
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
    """Return a device's NUMA node, root complex, root port and switch; a device without a place is alone in these."""
    place, path = device.pci_root or device.id, below_root(device.pci_root, device.pci_path)
    switch = path[:-2] if len(path) >= _LEAST_PATH else path[:-1]
    numa_node = ("NUMA", place if device.numa_node is None else device.numa_node)
    return numa_node, (place,), (place, path[:1]), (place, switch)
