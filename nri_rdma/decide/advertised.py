"""The devices of a ResourceSlice, with the attributes by which claims choose an RDMA device. Pure.

DRANET is another DRA driver. Attributes that it has, too, keep their names and values under our domain: a user migrates
by replacing `dra.net` in the text of a class or claim. Attributes that DRANET lacks are added. Kubernetes allows 32
attributes and capacities for each device, and 64 bytes in a text; we use at most 31 attributes and one capacity (listed
in docs/claims.md).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_interface
from typing import TypeAlias

from nri_rdma.cdi.spec import Kind
from nri_rdma.decide.share_requests import is_up, is_up_in
from nri_rdma.model.device import DeviceId, LinkLayer, Node, RdmaDevice, RdmaNetns
from nri_rdma.model.pool import Pool
from nri_rdma.model.request import Mode

DRIVER = "rdma.noderesource.dev"
"""The name of nri-rdma's DRA driver, which is also the domain of its attributes."""
CLAIM_KIND = Kind(vendor=DRIVER, device_class="claim")
"""The kind of the CDI devices of claims."""
MAX_TEXT = 64
MAX_DEVICES = 128
"""The most devices that Kubernetes allows in one ResourceSlice."""
PCIE_ROOT, NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"

DeviceAttribute: TypeAlias = Mapping[str, str | int | bool]
"""A value of an attribute in the form of Kubernetes' API: a mapping with one key, which is the value's type (`string`,
`int` or `bool`)."""

_BROADCAST = IPv4Address("255.255.255.255")
_NO_LABEL = re.compile(r"[^a-z0-9]+")
_MAX_LABEL = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class Advertised:
    """A device in the form of a ResourceSlice: its name, and its attributes and capacities under their qualified
    names."""

    name: str
    attributes: Mapping[str, DeviceAttribute]
    capacity: Mapping[str, str]


def slice_name(device: DeviceId) -> str:
    """Return the name of a device in ResourceSlices. A device with a PCI address has the name that DRANET (another DRA
    driver) gives it: ``pci-0000-8a-00-0``. Any other name that is no valid DNS label gets a hash at its end, so that
    ``rxe_0`` and ``rxe-0`` stay different."""
    label = _NO_LABEL.sub("-", device.lower()).strip("-")
    if ":" in device:
        return f"pci-{label}"
    if label == device and len(label) <= _MAX_LABEL:
        return label
    digits = hashlib.sha256(device.encode()).hexdigest()[:8]
    return f"{label[: _MAX_LABEL - 1 - len(digits)].strip('-')}-{digits}"


def lacks_netdev_for_claims(device: RdmaDevice, pool: Pool) -> bool:
    """Return whether claims for this device of the pool would be refused because it has no netdev on the host.

    Mode exclusive needs a netdev on the host. In a pool with the modes shared and exclusive each device needs one,
    because the scheduler does not know which mode a claim asks for. A device of a kind that never has a netdev (EFA)
    needs none, because it can be shared.
    """
    if not device.lacks_netdev or Mode.EXCLUSIVE not in pool.modes:
        return False
    return device.protocol is not None or Mode.SHARED not in pool.modes


def is_up_for_claims(device: RdmaDevice, pool: Pool) -> bool:
    """Return whether the device can carry data in a pod in every mode that the pool serves. Every mode must fit,
    because the scheduler does not know which mode a claim asks for."""
    return all(is_up_in(device, mode) for mode in pool.modes)


def advertised(node: Node, devices: Iterable[tuple[RdmaDevice, Pool]]) -> tuple[Advertised, ...]:
    """Return the devices as entries of a ResourceSlice, sorted by index. Devices that cannot carry data are at the end,
    because the scheduler takes the first device that fits. `devices` has each device with its pool."""
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
    """Yield the attributes of a device's netdev; DRANET, another DRA driver, has them, too. `alias` is present even if
    it is empty: the scheduler refuses a pod whose selector reads an attribute that a device lacks."""
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
    """Yield the attributes of a PCI function and its RDMA device; DRANET, another DRA driver, has them, too."""
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
    """Yield the attributes that only nri-rdma has, and not DRANET, another DRA driver."""
    yield "pool", pool
    yield "linkLayer", str(device.link_layer) if device.link_layer is not None else None
    yield "protocol", str(device.protocol) if device.protocol is not None else None
    yield "active", is_up(device)
    yield "rdmaNetns", str(node.rdma_netns) if node.rdma_netns is not RdmaNetns.NONE else None
    yield "physicalFunction", str(device.virtual.pf) if device.virtual is not None else None


def _listed(addresses: Iterable[str]) -> str:
    """Return the addresses that other hosts can reach, sorted as texts and joined by commas. Addresses that do not fit
    into one attribute are left out."""
    listed = ""
    for text in sorted(it for it in addresses if _is_global(it)):
        longer = f"{listed},{text}" if listed else text
        if len(longer) > MAX_TEXT:
            break
        listed = longer
    return listed


def _is_global(text: str) -> bool:
    """Return whether the Go library would call an address global unicast, which includes private addresses. DRANET,
    another DRA driver, lists exactly such addresses."""
    it = ip_interface(text).ip
    return not (it.is_loopback or it.is_link_local or it.is_multicast or it.is_unspecified or it == _BROADCAST)


def _attribute(value: str | int | bool) -> DeviceAttribute:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": _cut(value)}


def _cut(text: str) -> str:
    """Return the text cut to 64 bytes, the limit for an attribute. Bytes that are not valid UTF-8 are replaced."""
    return text.encode(errors="replace")[:MAX_TEXT].decode(errors="ignore")
