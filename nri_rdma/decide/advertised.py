"""What a ResourceSlice says of an RDMA device: the attributes by which claims choose. Pure.

DRANET's attributes have its names and values, so that `dra.net` in a class or claim can be replaced as a text; what it
lacks comes beside them. Kubernetes takes at most 32 attributes and capacities of a device, and 64 bytes of a text; we
use at most 31 and 1 (docs/claims.md has the list).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_interface
from typing import TypeAlias

from nri_rdma.decide.shares import is_up, is_up_in
from nri_rdma.model.device import DeviceId, LinkLayer, Node, RdmaDevice, RdmaNetns
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode

DRIVER = "rdma.noderesource.dev"
"""The name of our driver; the domain of its attributes, too."""
MAX_TEXT = 64
MAX_DEVICES = 128
"""Devices of a slice."""
PCIE_ROOT, NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"

DeviceAttribute: TypeAlias = Mapping[str, str | int | bool]
"""One of `string`, `int` and `bool`, with its value."""

_BROADCAST = IPv4Address("255.255.255.255")
_NO_LABEL = re.compile(r"[^a-z0-9]+")
_MAX_LABEL = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """A device of a slice: its name there, its attributes and its capacities by their qualified names."""

    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, str]


def slice_name(device: DeviceId) -> str:
    """Return the name of a device in slices, which is DRANET's where the device has a PCI address:
    ``pci-0000-8a-00-0``. Any other name that is no DNS label ends with a hash: ``rxe_0`` is not ``rxe-0``."""
    label = _NO_LABEL.sub("-", device.lower()).strip("-")
    if ":" in device:
        return f"pci-{label}"
    if label == device and len(label) <= _MAX_LABEL:
        return label
    digits = hashlib.sha256(device.encode()).hexdigest()[:8]
    return f"{label[: _MAX_LABEL - 1 - len(digits)].strip('-')}-{digits}"


def lacks_netdev_for_claims(device: RdmaDevice, pool: Pool) -> bool:
    """Return whether claims for this device of the pool would be refused because it has no netdev on the host.

    The scheduler does not know the mode that a claim asks for. So where the pool serves both modes the device counts as
    one that is had alone, unless it is of a kind that needs no netdev (EFA): pods can share that.
    """
    if not device.lacks_netdev or Mode.EXCLUSIVE not in pool.modes:
        return False
    return device.protocol is not None or Mode.SHARED not in pool.modes


def is_up_for_claims(device: RdmaDevice, pool: Pool) -> bool:
    """Return whether the device can carry data in a pod, whichever of the pool's modes its claim asks for: the
    scheduler does not know that."""
    return all(is_up_in(device, mode) for mode in pool.modes)


def advertised(node: Node, devices: Iterable[tuple[RdmaDevice, Pool]]) -> tuple[Advertised, ...]:
    """Return these devices, each with the pool that it is in, by index; those that cannot carry data come last, because
    the scheduler takes the first that fits."""
    ordered = sorted(devices, key=lambda it: (not is_up_for_claims(*it), it[0].index))
    return tuple(
        Advertised(
            name=slice_name(device.id),
            attributes=dict(_qualified(device, pool.name, node)),
            capacity={f"{DRIVER}/bandwidth": f"{device.speed_gbps}G"} if device.speed_gbps else {},
        )
        for device, pool in ordered
    )


def _qualified(device: RdmaDevice, pool: str, node: Node) -> Iterator[tuple[str, DeviceAttribute]]:
    for name, value in (*_of_netdev(device), *_of_function(device), *_own(device, pool, node)):
        if value is not None:
            yield f"{DRIVER}/{name}", _attribute(value)
    if device.pci_root:
        yield PCIE_ROOT, _attribute(device.pci_root)
    if device.numa_node is not None:
        yield NUMA_NODE, _attribute(device.numa_node)


def _of_netdev(device: RdmaDevice) -> Iterator[tuple[str, str | int | bool | None]]:
    """Yield what DRANET tells of a netdev. `alias` is there also where it is empty: the scheduler refuses a pod whose
    selector reads an attribute that a device lacks."""
    netdev = next(iter(device.netdevs), None)
    if netdev is None:
        return
    yield "ifName", netdev.name
    yield "mac", netdev.mac or None
    yield "mtu", netdev.mtu
    yield "state", "up" if netdev.up and is_up(device) else "down"
    yield "encapsulation", "infiniband" if device.link_layer is LinkLayer.INFINIBAND else "ether"
    yield "type", netdev.kind or "device"
    yield "alias", netdev.alias
    yield "ebpf", netdev.programs.are_there
    yield "tcFilterNames", ",".join(netdev.programs.filters) or None
    yield "tcxProgramNames", ",".join(netdev.programs.tcx) or None
    yield "ipv4", _listed(it for it in netdev.addresses if ":" not in it) or None
    yield "ipv6", _listed(it for it in netdev.addresses if ":" in it) or None


def _of_function(device: RdmaDevice) -> Iterator[tuple[str, str | int | bool | None]]:
    """Yield what DRANET tells of a PCI function and its RDMA device."""
    yield "pciAddress", str(device.pci) if device.pci is not None else None
    yield "pciVendor", device.vendor or None
    yield "pciDevice", device.device_id or None
    yield "pciSubsystem", device.subsystem or None
    yield "numaNode", device.numa_node
    yield "virtual", device.is_soft
    yield "sriov", device.max_vf_count > 0
    yield "sriovVfs", device.vf_count if device.max_vf_count else None
    yield "isSriovVf", True if device.virtual is not None else None
    yield "rdma", True
    yield "rdmaDevice", device.name


def _own(device: RdmaDevice, pool: str, node: Node) -> Iterator[tuple[str, str | int | bool | None]]:
    """Yield what DRANET does not tell."""
    yield "pool", pool
    yield "linkLayer", str(device.link_layer) if device.link_layer is not None else None
    yield "protocol", str(device.protocol) if device.protocol is not None else None
    yield "active", is_up(device)
    yield "rdmaNetns", str(node.rdma_netns) if node.rdma_netns is not RdmaNetns.NONE else None
    yield "physicalFunction", str(device.virtual.pf) if device.virtual is not None else None


def _listed(addresses: Iterable[str]) -> str:
    """Return the addresses that other hosts can send to, in the order of texts: as many as an attribute holds."""
    listed = ""
    for text in sorted(it for it in addresses if _is_global(it)):
        longer = f"{listed},{text}" if listed else text
        if len(longer) > MAX_TEXT:
            break
        listed = longer
    return listed


def _is_global(text: str) -> bool:
    """Return whether Go calls the address a global unicast one, as DRANET asks: private ones are."""
    it = ip_interface(text).ip
    return not (it.is_loopback or it.is_link_local or it.is_multicast or it.is_unspecified or it == _BROADCAST)


def _attribute(value: str | int | bool) -> DeviceAttribute:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": _cut(value)}


def _cut(text: str) -> str:
    """Return the text as far as an attribute holds it: Kubernetes counts bytes, and a name or alias may be no text."""
    return text.encode(errors="replace")[:MAX_TEXT].decode(errors="ignore")
