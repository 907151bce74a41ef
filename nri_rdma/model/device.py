"""The hardware of a node: RDMA devices with their ports, character devices and netdevs, and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeAlias

from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.pci import PciAddress

DeviceId = NewType("DeviceId", str)
"""The identity of an RDMA device on its node: its PCI address, with ``/name`` if it is one of several RDMA devices of
the PCI function, or of a scalable function; or its name if it has no PCI parent (soft RoCE, soft iWARP)."""

DeviceNumbers: TypeAlias = tuple[int, int]
"""Major and minor number of a device node."""


class LinkLayer(StrEnum):
    """The link layer of a port, as the kernel writes it."""

    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"


class Protocol(StrEnum):
    """The protocol of an RDMA device, as `rdma dev show` writes it."""

    IB = "ib"
    ROCE = "roce"
    IWARP = "iwarp"


class CharKind(StrEnum):
    """The kinds of character device under /dev/infiniband, by the kernel's names for them."""

    UVERBS = "uverbs"
    UMAD = "umad"
    ISSM = "issm"
    RDMA_CM = "rdma_cm"

    __hash__ = str.__hash__  # Enum's own is a Python function, and kinds are hashed for every container


FULL_MEMBER = 0x8000
"""The bit of a P_Key that means full membership (InfiniBand Architecture Specification, volume 1, 10.9)."""
IPOIB = "ipoib"
"""The link kind that the kernel reports for an IPoIB netdev."""


class RdmaNetns(StrEnum):
    """The kernel's netns mode of RDMA devices (`rdma system`)."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    NONE = "none"
    """The kernel has no RDMA subsystem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """A character device node of the host. `mode` is its permission bits. `path` is its path on the host and in
    containers."""

    kind: CharKind
    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an RDMA device; `speed_gbps` is 0 if the kernel does not report it.

    `pkeys` are the non-empty entries of an InfiniBand port's P_Key table: the partitions that the port is in.
    """

    number: int
    link_layer: LinkLayer
    state: str
    speed_gbps: int
    pkeys: tuple[int, ...] = ()

    @property
    def is_active(self) -> bool:
        """Return whether the port can carry data."""
        return self.state == "ACTIVE"

    @property
    def is_limited(self) -> bool:
        """Return whether an InfiniBand port is a limited member of all its partitions. It can then reach full members
        only."""
        return bool(self.pkeys) and not any(key & FULL_MEMBER for key in self.pkeys)


@dataclass(frozen=True, slots=True, kw_only=True)
class EbpfPrograms:
    """The names of the eBPF programs on a netdev; a name may be empty."""

    filters: tuple[str, ...] = ()
    """The programs that are TC filters, by the name under which they were added: ``prog.o:[classifier]``."""
    tcx: tuple[str, ...] = ()
    """The programs attached by TCX, by the kernel's name of the program, such as ``handle_ingress``."""

    @property
    def are_there(self) -> bool:
        """Return whether there is any program."""
        return bool(self.filters or self.tcx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Netdev:
    """A netdev of an RDMA device, as the last scan of the host found it."""

    name: str
    ifindex: int
    mac: str
    mtu: int
    up: bool
    max_mtu: int = 0
    """The greatest MTU that the driver accepts; 0 if unknown."""
    unreturnable: tuple[str, ...] = ()
    """The reasons why the netdev must not leave the host: something on the host depends on it and could not be restored
    (LinkState.unreturnable). Pods may still share its device."""
    kind: str = ""
    """The link kind that the kernel reports for a virtual link (``ipoib``, ``veth``); "" for a hardware netdev."""
    alias: str = ""
    addresses: tuple[str, ...] = ()
    """Its IP addresses with prefix length."""
    programs: EbpfPrograms = EbpfPrograms()
    """The eBPF programs on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunction:
    """The origin of a virtual function: the physical function, its netdevs on the host, and the number of the virtual
    function."""

    pf: PciAddress
    number: int
    pf_netdevs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """An RDMA device of the node.

    `pci_path` lists the bridges from `pci_root` (``pci0000:10``) down to the PCI function; both are empty without a PCI
    parent. `vendor` and `device_id` are four lower-case hexadecimal digits, or empty. `in_use` holds the reasons why no
    pod may get the device; empty means free.
    """

    id: DeviceId
    index: int
    name: str
    node_type: str
    node_guid: str
    driver: str
    vendor: str
    pci: PciAddress | None
    pci_root: str
    pci_path: tuple[str, ...]
    numa_node: int | None
    ports: tuple[Port, ...]
    char_devices: tuple[CharDevice, ...]
    netdevs: tuple[Netdev, ...]
    in_use: tuple[str, ...] = ()
    kernel_index: int | None = None
    """The kernel's index, which no rename changes; None if the kernel does not know the device."""
    device_id: str = ""
    virtual: VirtualFunction | None = None
    """The origin of a virtual function; None for any other device."""
    subsystem: str = ""
    """The PCI subsystem id: four lower-case hexadecimal digits, or empty."""
    vf_count: int = 0
    """The number of its virtual functions, if it is a physical function."""
    max_vf_count: int = 0
    """The greatest number of virtual functions that it supports."""
    used_by_some: tuple[str, ...] = ()
    """Reasons that count like `in_use`, but only while no pod has the device: processes that have it open, and sockets
    on its addresses. While pods have the device, such processes and sockets are assumed to be the pods' own."""

    @property
    def uses(self) -> tuple[str, ...]:
        """The reasons why a pod is refused the device if no pod has it yet: `in_use` and `used_by_some` together."""
        return (*self.in_use, *self.used_by_some)

    @property
    def ties(self) -> tuple[str, ...]:
        """The reasons why no pod can have the device exclusively: something on the host depends on its netdevs and
        could not be restored afterwards. Pods may still share the device."""
        return tuple(f"{netdev.name} {reason}" for netdev in self.netdevs for reason in netdev.unreturnable)

    @property
    def link_layer(self) -> LinkLayer | None:
        """The link layer of the first port."""
        return self.ports[0].link_layer if self.ports else None

    @property
    def protocol(self) -> Protocol | None:
        """The protocol of the device; None if it is neither InfiniBand nor RoCE nor iWARP (EFA and usNIC, for example).
        The kernel's node type RNIC means iWARP."""
        if self.node_type == "RNIC":
            return Protocol.IWARP
        if self.node_type != "CA" or self.link_layer is None:
            return None
        return Protocol.IB if self.link_layer is LinkLayer.INFINIBAND else Protocol.ROCE

    @property
    def is_soft(self) -> bool:
        """Return whether the device is software only (soft RoCE, soft iWARP). The kernel removes it together with its
        netdev."""
        return self.pci is None and not self.driver

    @property
    def lacks_netdev(self) -> bool:
        """Return whether the device needs a netdev and the host does not have it. The netdev is then in another network
        namespace."""
        return not self.netdevs and self.link_layer is not LinkLayer.INFINIBAND

    @property
    def is_silent(self) -> bool:
        """Return whether the kernel reports no changes of the device's ports. That is so for an InfiniBand device
        without a netdev."""
        return not self.netdevs and self.link_layer is LinkLayer.INFINIBAND

    @property
    def is_limited(self) -> bool:
        """Return whether all ports are limited members of all their partitions."""
        return bool(self.ports) and all(port.is_limited for port in self.ports)

    @property
    def port_state(self) -> str:
        """The state of the ports in the kernel's words: ACTIVE if a port is active, "" if there are no ports."""
        states = list(dict.fromkeys(port.state for port in self.ports))
        return "ACTIVE" if "ACTIVE" in states else " and ".join(states)

    @property
    def speed_gbps(self) -> int:
        """The speed of the fastest port."""
        return max((port.speed_gbps for port in self.ports), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, identified by its PCI address.

    The other fields are names that programs use for it: `uuid` is NVIDIA's (``GPU-`` and 36 characters), `node_names`
    are the file names of its device nodes (``nvidia0``, ``card1``, ``renderD128``), and `nodes` their major and minor
    numbers.
    """

    pci: PciAddress
    pci_root: str
    pci_path: tuple[str, ...]
    numa_node: int | None
    vendor: str
    uuid: str = ""
    node_names: tuple[str, ...] = ()
    nodes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """A NUMA node and its CPUs, as ranges of first and last number."""

    number: int
    cpus: tuple[tuple[int, int], ...]

    def has(self, cpu: int) -> bool:
        """Return whether the CPU belongs to this NUMA node."""
        return any(first <= cpu <= last for first, last in self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The hardware that sysfs shows. `netdev_names` has the names of each device's netdevs, in the order of its
    ports."""

    devices: tuple[RdmaDevice, ...]
    netdev_names: Mapping[DeviceId, tuple[str, ...]]
    gpus: tuple[Gpu, ...]
    rdma_cm: CharDevice | None
    rdma_netns: RdmaNetns
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The hardware of a node. Devices are ordered by index, GPUs by PCI address."""

    devices: tuple[RdmaDevice, ...]
    gpus: tuple[Gpu, ...]
    rdma_cm: CharDevice | None
    rdma_netns: RdmaNetns
    rdma_cgroup: bool
    """Whether the node can limit RDMA resources of containers: it has cgroup v2 with the rdma controller."""
    numa_nodes: tuple[NumaNode, ...] = ()
    capacities: Mapping[DeviceId, RdmaCapacity] = field(default_factory=dict)
    """The capacity of each device whose driver answered the query for its capacity."""
    capacity_problems: Mapping[DeviceId, str] = field(default_factory=dict)
    """For each device whose capacity could not be queried, the reason."""

    def device(self, device_id: DeviceId) -> RdmaDevice | None:
        """Return the device with this identity, or None."""
        return next((device for device in self.devices if device.id == device_id), None)
