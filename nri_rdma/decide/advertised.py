"""What a ResourceSlice says of an RDMA device: the attributes by which claims choose. Pure.

DRANET's attributes have its names and values, so that `dra.net` in a class or claim can be replaced as a text; what it
lacks comes beside them. Kubernetes takes at most 32 attributes and capacities of a device, and 64 characters of a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.decide.shares import is_up
from nri_rdma.model.device import DeviceId, LinkLayer, Node, RdmaDevice, RdmaNetns

DRIVER = "rdma.noderesource.dev"
"""The name of our driver; the domain of its attributes, too."""
MAX_TEXT = 64
MAX_DEVICES = 128
"""Devices of a slice."""
PCIE_ROOT, NUMA_NODE = "resource.kubernetes.io/pcieRoot", "resource.kubernetes.io/numaNode"

DeviceAttribute: TypeAlias = Mapping[str, str | int | bool]
"""One of `string`, `int` and `bool`, with its value."""

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


def advertised(node: Node, devices: Iterable[tuple[RdmaDevice, str]]) -> tuple[Advertised, ...]:
    """Return these devices, each with the pool that it is in, by index."""
    ordered = sorted(devices, key=lambda it: it[0].index)
    return tuple(
        Advertised(
            name=slice_name(device.id),
            attributes=dict(_qualified(device, pool, node)),
            capacity={f"{DRIVER}/bandwidth": f"{device.speed_gbps}G"} if device.speed_gbps else {},
        )
        for device, pool in ordered
    )


def _qualified(device: RdmaDevice, pool: str, node: Node) -> Iterator[tuple[str, DeviceAttribute]]:
    for name, value in (*_of_dranet(device), *_own(device, pool, node)):
        if value is not None and value != "":
            yield f"{DRIVER}/{name}", _attribute(value)
    if device.pci_root:
        yield PCIE_ROOT, _attribute(device.pci_root)
    if device.numa_node is not None:
        yield NUMA_NODE, _attribute(device.numa_node)


def _of_dranet(device: RdmaDevice) -> Iterator[tuple[str, str | int | bool | None]]:
    netdev = next(iter(device.netdevs), None)
    if netdev is not None:
        yield "ifName", netdev.name
        yield "mac", netdev.mac
        yield "mtu", netdev.mtu
        yield "state", "up" if netdev.up else "down"
        yield "encapsulation", "infiniband" if device.link_layer is LinkLayer.INFINIBAND else "ether"
    yield "pciAddress", str(device.pci) if device.pci is not None else None
    yield "pciVendor", device.vendor
    yield "pciDevice", device.device_id
    yield "numaNode", device.numa_node
    yield "virtual", device.is_soft
    yield "sriov", device.vf_count > 0
    yield "sriovVfs", device.vf_count or None
    yield "isSriovVf", True if device.virtual is not None else None
    yield "rdma", True
    yield "rdmaDevice", device.name


def _own(device: RdmaDevice, pool: str, node: Node) -> Iterator[tuple[str, str | int | bool | None]]:
    """Yield what DRANET does not tell."""
    yield "pool", pool
    yield "driver", device.driver
    yield "linkLayer", str(device.link_layer) if device.link_layer is not None else None
    yield "protocol", str(device.protocol) if device.protocol is not None else None
    yield "active", is_up(device)
    yield "speedGbps", device.speed_gbps or None
    yield "nodeGuid", device.node_guid
    yield "rdmaNetns", str(node.rdma_netns) if node.rdma_netns is not RdmaNetns.NONE else None
    if device.virtual is not None:
        yield "physicalFunction", str(device.virtual.pf)
        yield "vfNumber", device.virtual.number


def _attribute(value: str | int | bool) -> DeviceAttribute:
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"string": value[:MAX_TEXT]}
