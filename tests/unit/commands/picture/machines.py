"""Machines that no description in the rig has: switches in switches, crowded functions, hostile names, holders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from nri_rdma.decide.placement import Holding, Taken
from nri_rdma.model.device import DeviceId, Gpu, Node, RdmaDevice, VirtualFunction
from nri_rdma.model.pci import PciAddress, parse_pci_address
from nri_rdma.model.request import Mode
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.model import hardware


def described(name: str, work: Path) -> Node:
    """A node of the rig, as the scan of its sysfs tree finds it."""
    from nri_rdma.host.sysfs.scan import scan

    build_tree(load(name), work / name)
    found = scan(work / name, work / "dev")
    return hardware.node(found.devices, found.gpus)


def switched(switches: int = 4) -> Node:
    """Switches below a root complex each, with two GPUs and two NICs on every one; a third pair is on a second switch
    below the first. Two switches per NUMA node."""
    devices: list[RdmaDevice] = []
    gpus: list[Gpu] = []
    for number in range(switches):
        root, bus = f"pci0000:{0x10 + 0x20 * number:02x}", 0x10 + 0x20 * number
        port, upstream = f"0000:{bus:02x}:01.0", f"0000:{bus + 1:02x}:00.0"
        inner = (port, upstream, f"0000:{bus + 2:02x}:07.0", f"0000:{bus + 10:02x}:00.0")
        for place in range(3):
            above = (port, upstream) if place < 2 else inner
            gpu = PciAddress(0, bus + 3 + place, 0, 0)
            gpus.append(at_gpu(gpu, (root, *above, f"0000:{bus + 2:02x}:0{place}.0", str(gpu)), numa=number // 2))
            nic = PciAddress(0, bus + 6 + place, 0, 0)
            path = (root, *above, f"0000:{bus + 2:02x}:1{place}.0", str(nic))
            devices.append(at(len(devices), nic, path, numa=number // 2))
    return hardware.node(tuple(devices), tuple(gpus))


def flat(nics: int = 16, gpus: int = 16) -> Node:
    """Everything below one root complex, a root port each: a virtual machine. Its NUMA node is not known."""
    devices = tuple(
        at(number, address, ("pci0000:00", f"0000:00:{number:02x}.0", str(address)))
        for number in range(nics)
        for address in (PciAddress(0, 0x20 + number, 0, 0),)
    )
    cards = tuple(
        at_gpu(address, ("pci0000:00", f"0000:00:{nics + number:02x}.0", str(address)))
        for number in range(gpus)
        for address in (PciAddress(0, 0x60 + number, 0, 0),)
    )
    return hardware.node(devices, cards)


def crowded(virtual: int = 64, scalable: int = 5) -> Node:
    """Two GPUs and two functions: one with virtual functions, one with scalable ones beside its own device."""
    pf, other = PciAddress(0, 0x41, 0, 0), PciAddress(0, 0x61, 0, 0)
    path, far = ("pci0000:40", "0000:40:01.0"), ("pci0000:60", "0000:60:01.0")
    own = at(0, pf, (*path, str(pf)), numa=0, in_use=(f"mlx5_0 has {virtual} virtual functions",))
    devices = [replace(own, vf_count=virtual)]
    for number in range(virtual):
        address = PciAddress(0, 0x41, 1 + number // 8, number % 8)
        own = at(1 + number, address, (*path, str(address)), numa=0)
        devices.append(replace(own, virtual=VirtualFunction(pf=pf, number=number)))
    for number in range(1 + scalable):
        own = at(1 + virtual + number, other, (*far, str(other)), numa=1)
        devices.append(replace(own, id=DeviceId(f"{other}/{own.name}")))
    gpus = (
        at_gpu(PciAddress(0, 0x42, 0, 0), ("pci0000:40", "0000:40:02.0", "0000:42:00.0"), numa=0),
        at_gpu(PciAddress(0, 0x62, 0, 0), ("pci0000:60", "0000:60:02.0", "0000:62:00.0"), numa=1),
    )
    return hardware.node(tuple(devices), gpus)


def hostile() -> Node:
    """Names that want to leave their box, their line or their file."""
    node = hardware.eight()
    names = (
        "<script>alert(1)</script>",
        "]]>&amp;\"'",
        "m" * 60,
        "\x1b[2J\n\x00",
        "設備" * 12,
        "\ud800\ufffe",
        "",
        "e\u0301" * 20,
    )
    devices = tuple(replace(device, name=name) for device, name in zip(node.devices, names, strict=True))
    return replace(node, devices=devices)


def at(
    number: int,
    address: PciAddress,
    path: tuple[str, ...],
    *,
    numa: int | None = None,
    in_use: tuple[str, ...] = (),
) -> RdmaDevice:
    """A NIC at a place."""
    nic = hardware.nic(number, numa=numa, in_use=in_use)
    return replace(nic, id=DeviceId(str(address)), pci=address, pci_root=path[0], pci_path=path[1:])


def at_gpu(address: PciAddress, path: tuple[str, ...], *, numa: int | None = None) -> Gpu:
    """A GPU at a place."""
    return replace(hardware.gpu(0, numa=numa), pci=address, pci_root=path[0], pci_path=path[1:])


def held(
    node: Node, holders: Mapping[str, tuple[tuple[str, ...], tuple[int, ...]]], mode: Mode = Mode.EXCLUSIVE
) -> Taken:
    """Who has which devices, by name, and which GPUs, by number."""
    taken: dict[DeviceId, set[Holding]] = {}
    for pod, (names, numbers) in holders.items():
        holding = Holding(owner=pod, mode=mode, gpus=frozenset(node.gpus[number].pci for number in numbers))
        for device in node.devices:
            if device.name in names:
                taken.setdefault(device.id, set()).add(holding)
    return {device_id: frozenset(found) for device_id, found in taken.items()}


def pci(text: str) -> PciAddress:
    """The address, which is one."""
    address = parse_pci_address(text)
    assert address is not None, text
    return address
