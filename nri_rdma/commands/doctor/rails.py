"""Checks of RDMA devices before pods use them: GUIDs of InfiniBand, GIDs of RoCE v2, and equal MTU and firmware of
devices of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from functools import partial

from nri_rdma.commands.doctor.finding import Finding, not_applicable, ok, warning
from nri_rdma.commands.doctor.machine import Machine
from nri_rdma.errors import InventoryError
from nri_rdma.host.sysfs.attributes import entries, read
from nri_rdma.model.device import LinkLayer, Port, Protocol, RdmaDevice, VirtualFunction
from nri_rdma.model.gid import GidType

_ZERO_GUID = "0000:0000:0000:0000"
_ONE_MTU = "one MTU for all: `ip link set dev NETDEV mtu N`, and in the host's network configuration"
_ONE_FIRMWARE = "one firmware for all, by the maker's tool (mlxfwmanager, niccli)"
_FEW = 2
"""The largest number of devices that a finding lists by name. A larger group is called "the others"."""


def guids(machine: Machine) -> Finding:
    """Check that InfiniBand devices have GUIDs. The GUID of a virtual function is zero until an administrator sets
    it."""
    known = [it for it in _devices(machine) if it.link_layer is LinkLayer.INFINIBAND]
    bare = [it for it in known if it.node_guid == _ZERO_GUID]
    if not known:
        return not_applicable("GUIDs", "there is no device of InfiniBand")
    if not bare:
        return ok("GUIDs", f"{_counted(len(known), 'device')} of InfiniBand {_have(known)} GUIDs")
    return warning(
        "GUIDs",
        f"the node GUID of {', '.join(it.name for it in bare)} is zero: no subnet manager sets its port up, which stays"
        " DOWN",
        f"{_set_guid(bare[0].virtual)}; then unbind each from its driver and bind it again",
    )


def _set_guid(place: VirtualFunction | None) -> str:
    """Return the command that sets the GUIDs of a virtual function. `place` says on which physical function it is; None
    in a virtual machine, which does not see the physical function."""
    if place is None:
        return "where the virtual functions are made (the hypervisor), set node_guid and port_guid"
    pf = place.pf_netdevs[0] if place.pf_netdevs else f"NETDEV-OF-{place.pf}"
    return f"for each `ip link set {pf} vf {place.number} node_guid GUID`, and the same with port_guid"


def roce_v2(machine: Machine) -> Finding:
    """Check that each active RoCE port has a RoCE v2 GID, which NCCL and IP routers need."""
    known = {
        (device.name, port.number, device.netdevs[0].name): types
        for device in _devices(machine)
        if device.protocol is Protocol.ROCE and device.netdevs
        for port in device.ports
        if port.is_active and (types := _gid_types(machine, device, port)) is not None
    }
    lacking = {place: types for place, types in known.items() if GidType.ROCE_V2 not in types}
    if not known:
        return not_applicable("RoCE v2", "there is no active port of RoCE with its netdev on the host")
    if not lacking:
        return ok("RoCE v2", f"{_counted(len(known), 'port')} {_have(known)} GIDs of RoCE v2")
    words = [
        f"{name} port {port} has {' and '.join(types)} only" if types else f"{name} port {port} has no GID"
        for (name, port, _), types in lacking.items()
    ]
    return warning(
        "RoCE v2",
        f"{', '.join(words)}: NCCL finds no GID there, and no router takes its packets",
        f"set the netdev up and give it an address ({', '.join(netdev for _, _, netdev in lacking)}); if it has both,"
        " look for RoCE v2 in the driver's settings (`devlink dev param show`, enable_roce) and the firmware",
    )


def _gid_types(machine: Machine, device: RdmaDevice, port: Port) -> Sequence[str] | None:
    """Return the types of the port's GIDs, without duplicates; None if the driver shows no GID table."""
    folder = f"{machine.settings.sysfs_root}/class/infiniband/{device.name}/ports/{port.number}/gid_attrs/types"
    names = entries(folder)
    return sorted({read(f"{folder}/{name}") for name in names} - {""}) if names else None


def equal_rails(machine: Machine) -> Finding:
    """Check that devices of one kind and speed have equal MTU and firmware, because a job is as fast as its slowest
    device."""
    alike: list[str] = []
    differing: dict[str, str] = {}
    for title, devices in _equals(machine):
        for what, values, fix in (
            ("MTU", _by_value(devices, _mtu), _ONE_MTU),
            ("firmware", _by_value(devices, partial(_firmware, machine)), _ONE_FIRMWARE),
        ):
            if len(values) > 1:
                differing[f"{title} differ in {what}: {', '.join(_groups_words(values))}"] = fix
            else:
                alike.append(f"{title} have {what} {next(iter(values))}")
    if differing:
        return warning("equal rails", "; ".join(differing), "; ".join(dict.fromkeys(differing.values())))
    if alike:
        return ok("equal rails", "; ".join(alike))
    return not_applicable("equal rails", "no two devices on PCI are of one kind and speed")


def _equals(machine: Machine) -> Iterator[tuple[str, list[RdmaDevice]]]:
    """Yield a title and the devices of each group that should be alike: two or more devices of one kind and speed. A
    device whose netdev is in a pod is left out, because its MTU is the pod's choice."""
    groups: dict[str, list[RdmaDevice]] = {}
    for device in _devices(machine):
        if device.pci is not None and device.netdevs:
            kind = f"{device.vendor}:{device.device_id}, {device.speed_gbps} Gb/s"
            groups.setdefault(kind, []).append(device)
    for kind, devices in groups.items():
        if len(devices) > 1:
            yield f"{len(devices)} equal devices ({kind})", devices


def _mtu(device: RdmaDevice) -> str:
    return " and ".join(dict.fromkeys(str(netdev.mtu) for netdev in device.netdevs))


def _firmware(machine: Machine, device: RdmaDevice) -> str:
    return read(f"{machine.settings.sysfs_root}/class/infiniband/{device.name}/fw_ver") or "unknown"


def _by_value(devices: Iterable[RdmaDevice], value: Callable[[RdmaDevice], str]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for device in devices:
        found.setdefault(value(device), []).append(device.name)
    return found


def _groups_words(by_value: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield words for each value and the devices that have it, the rarest value first."""
    ordered = sorted(by_value.items(), key=lambda it: len(it[1]))
    for number, (value, names) in enumerate(ordered, 1):
        is_rest = number == len(ordered) and len(names) > _FEW
        yield f"{value} on {'the others' if is_rest else ' and '.join(names)}"


def _devices(machine: Machine) -> tuple[RdmaDevice, ...]:
    return () if isinstance(machine.node, InventoryError) else machine.node[0].devices


def _have(things: Sized) -> str:
    return "has" if len(things) == 1 else "have"


def _counted(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
