"""Random nodes whose distances are known because they were built that way.

Each GPU and NIC is put at a place (a root complex, a root port, a switch); how far two places are apart is a matter of
which of these are the same. The product sees only the PCI paths that follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count
from random import Random

from nri_rdma.decide.placement import Holding
from nri_rdma.model.device import DeviceId, Gpu, Node, RdmaDevice, VirtualFunction
from nri_rdma.model.pci import PciAddress
from nri_rdma.model.request import Mode
from tests.unit.model.hardware import nic, node

VENDORS = ("15b3", "14e4")
_MOST = 16


class Far(IntEnum):
    """How far; in the words of nvidia-smi."""

    PIX = 1
    PXB = 2
    PHB = 3
    NODE = 4
    SYS = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where something sits. Numbers are identities; `bridges` is the way from the root complex down to it."""

    root: int
    port: int
    switch: int
    bridges: tuple[str, ...]
    numa: int | None
    bus: int


NOWHERE = -1


def far(one: Place, other: Place) -> Far:
    """The distance between two places."""
    if one.root != NOWHERE and one.root == other.root:
        if one.port == other.port:
            return Far.PIX if one.switch == other.switch else Far.PXB
        return Far.PHB
    return Far.NODE if one.numa is not None and one.numa == other.numa else Far.SYS


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeNode:
    """A node, the place of each of its devices and GPUs, and who has what of it."""

    node: Node
    of_device: dict[DeviceId, Place]
    of_gpu: dict[PciAddress, Place]
    taken: dict[DeviceId, frozenset[Holding]]

    def far(self, device: RdmaDevice, gpu: PciAddress) -> Far:
        """From a device to a GPU."""
        return far(self.of_device[device.id], self.of_gpu[gpu])

    @property
    def idle(self) -> list[PciAddress]:
        """The GPUs that nobody is known to have."""
        busy = {gpu for holders in self.taken.values() for holding in holders for gpu in holding.gpus}
        return [gpu.pci for gpu in self.node.gpus if gpu.pci not in busy]


def random_node(random: Random) -> MadeNode:
    """1 to 16 GPUs and NICs; every third node is small."""
    most = random.choice((4, _MOST, _MOST))
    places = _places(random)
    gpus = sorted(
        (_gpu(number, random.choice(places)) for number in range(random.randint(1, most))), key=lambda it: it[0].pci
    )
    nics = _nics(random, places, random.randint(1, most))
    return MadeNode(
        node=node(tuple(device for device, _ in nics), tuple(gpu for gpu, _ in gpus)),
        of_device={device.id: place for device, place in nics},
        of_gpu={gpu.pci: place for gpu, place in gpus},
        taken=_taken(random, [device for device, _ in nics], [gpu.pci for gpu, _ in gpus]),
    )


# Places


def _places(random: Random) -> list[Place]:
    """Spots where functions can be plugged in: on root ports, and below switches of one to three levels."""
    sockets, numbers = random.randint(1, 4), count()
    has_numa = random.random() < 0.85
    places: list[Place] = []
    for root in range(random.randint(1, 6)):
        buses = count(1)  # each root complex is a PCI domain of its own
        numa = root % sockets if has_numa and random.random() < 0.9 else None
        for _ in range(random.randint(1, 3)):
            port = next(numbers)
            top = Place(root, port, next(numbers), (f"{root:04x}:00:{port:02x}.0",), numa, 0)
            if random.random() < 0.4:
                places += [replace(top, bus=next(buses))]
            else:
                places += _below_switch(random, top, random.randint(1, 3), buses, numbers)
    return places


def _below_switch(random: Random, above: Place, levels: int, buses: count[int], numbers: count[int]) -> list[Place]:
    """The downstream ports of a switch: each is a spot, or has another switch behind it."""
    bus, switch = next(buses), next(numbers)
    upstream = (*above.bridges, f"{above.root:04x}:{bus:02x}:00.0")
    ports = [
        replace(
            above, switch=switch, bridges=(*upstream, f"{above.root:04x}:{bus:02x}:{port + 1:02x}.0"), bus=next(buses)
        )
        for port in range(random.randint(2, 4))
    ]
    deeper = 1 if levels > 1 else 0
    return ports[deeper:] + [
        place for port in ports[:deeper] for place in _below_switch(random, port, levels - 1, buses, numbers)
    ]


def _root(place: Place) -> str:
    return f"pci{place.root:04x}:00"


def _path(place: Place, function: PciAddress) -> tuple[str, ...]:
    return (_root(place), *place.bridges, str(function))


def _gpu(number: int, place: Place) -> tuple[Gpu, Place]:
    address = PciAddress(place.root, place.bus, _MOST + number, 0)
    found = Gpu(pci=address, pci_root=_root(place), pci_path=_path(place, address), numa_node=place.numa, vendor="10de")
    return found, place


# Devices


def _nics(random: Random, places: list[Place], wanted: int) -> list[tuple[RdmaDevice, Place]]:
    """Cards with one or several devices, with virtual functions, and soft devices without a place; on some nodes some
    ports are down."""
    found: list[tuple[RdmaDevice, Place]] = []
    dead = random.choice((0.0, 0.0, 0.2, 0.6))
    while len(found) < wanted:
        kind = random.random()
        if kind < 0.05:
            numa = random.choice((None, 0, 1))
            found.append((_soft(len(found), numa), Place(NOWHERE, NOWHERE, NOWHERE, (), numa, 0)))
            continue
        place = random.choice(places)
        size = 1 if kind < 0.7 else random.randint(2, 4)
        makes = _virtual if kind < 0.8 else _siblings
        for device in makes(place, len(found), min(size, wanted - len(found))):
            busy = ("enslaved",) if random.random() < 0.08 else ()
            ports = tuple(replace(port, state="DOWN") for port in device.ports) if random.random() < dead else ()
            found.append(
                (replace(device, in_use=busy, vendor=random.choice(VENDORS), ports=ports or device.ports), place)
            )
    return found


def _plain(number: int, place: Place, function: PciAddress, identity: str) -> RdmaDevice:
    return replace(
        nic(number),
        id=DeviceId(identity),
        pci=function,
        pci_root=_root(place),
        pci_path=_path(place, function),
        numa_node=place.numa,
    )


def _virtual(place: Place, first: int, size: int) -> list[RdmaDevice]:
    """A physical function and virtual ones of it."""
    functions = [PciAddress(place.root, place.bus, first, number) for number in range(size)]
    devices = [_plain(first + n, place, function, str(function)) for n, function in enumerate(functions)]
    return devices[:1] + [
        replace(device, virtual=VirtualFunction(pf=functions[0], number=number))
        for number, device in enumerate(devices[1:])
    ]


def _siblings(place: Place, first: int, size: int) -> list[RdmaDevice]:
    """Several devices of one function."""
    function = PciAddress(place.root, place.bus, first, 0)
    return [_plain(first + n, place, function, f"{function}/mlx5_{first + n}") for n in range(size)]


def _soft(number: int, numa: int | None) -> RdmaDevice:
    return replace(
        nic(number), id=DeviceId(f"rxe{number}"), pci=None, pci_root="", pci_path=(), numa_node=numa, driver=""
    )


# Holders


def _taken(random: Random, devices: list[RdmaDevice], gpus: list[PciAddress]) -> dict[DeviceId, frozenset[Holding]]:
    """Some devices are held, alone or together, by pods that have GPUs or none."""
    taken: dict[DeviceId, frozenset[Holding]] = {}
    unused, share = list(gpus), random.choice((0.0, 0.0, 0.3, 0.6))
    for number, device in enumerate(devices):
        if random.random() >= share:
            continue
        own = frozenset(
            unused.pop(random.randrange(len(unused))) for _ in range(min(random.randint(0, 2), len(unused)))
        )
        mode = random.choice((Mode.EXCLUSIVE, Mode.EXCLUSIVE, Mode.SHARED))
        pods = range(random.randint(1, 3) if mode is Mode.SHARED else 1)
        taken[device.id] = frozenset(Holding(owner=f"ns/pod-{number}-{pod}", mode=mode, gpus=own) for pod in pods)
    return taken
