"""The hardware of a node: RDMA devices with their ports, character devices and netdevs, and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType, TypeAlias

from nri_rdma.model.capacity import RdmaCapacity
from nri_rdma.model.pci import PciAddress

DeviceId = NewType("DeviceId", str)
"""Identity of an RDMA device on its node: its PCI address, with ``/name`` when a function has several devices,
or its name when it has no PCI parent (soft RoCE, soft iWARP)."""

DeviceNumbers: TypeAlias = tuple[int, int]
"""Major and minor number of a device node."""


class LinkLayer(StrEnum):
    """The port's link layer, as the kernel writes it."""

    INFINIBAND = "InfiniBand"
    ETHERNET = "Ethernet"


class Protocol(StrEnum):
    """The protocol of an RDMA device, in the words of `rdma dev show`."""

    IB = "ib"
    ROCE = "roce"
    IWARP = "iwarp"


class CharKind(StrEnum):
    """The kinds of character device under /dev/infiniband, by the kernel's names."""

    UVERBS = "uverbs"
    UMAD = "umad"
    ISSM = "issm"
    RDMA_CM = "rdma_cm"

    __hash__ = str.__hash__  # Enum's own is a call of Python, and this one is asked for every container


FULL_MEMBER = 0x8000
"""The bit of a pkey that says full membership (InfiniBand Architecture Specification, volume 1, 10.9)."""
IPOIB = "ipoib"
"""The kernel's word for a netdev of IPoIB."""


class RdmaNetns(StrEnum):
    """The kernel's `rdma system` netns setting."""

    SHARED = "shared"
    EXCLUSIVE = "exclusive"
    NONE = "none"
    """The kernel has no RDMA subsystem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CharDevice:
    """A character device node of the host; `mode` is its permission bits, `path` the same in host and container."""

    kind: CharKind
    path: str
    major: int
    minor: int
    mode: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A port of an RDMA device; `speed_gbps` is 0 when the kernel does not report it.

    `pkeys` are the partitions that an InfiniBand port is in, as its table has them but without the empty entries.
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
        """Return whether an InfiniBand port is a limited member of each of its partitions: it reaches full members
        only, and no other limited one."""
        return bool(self.pkeys) and not any(key & FULL_MEMBER for key in self.pkeys)


@dataclass(frozen=True, slots=True, kw_only=True)
class EbpfPrograms:
    """The eBPF programs of a netdev by their names, which may be empty."""

    filters: tuple[str, ...] = ()
    """Those that are filters of TC: ``prog.o:[classifier]``, the name that they were added with."""
    tcx: tuple[str, ...] = ()
    """Those that are attached by TCX, by the kernel's name of the program: ``handle_ingress``."""

    @property
    def are_there(self) -> bool:
        """Return whether there are any."""
        return bool(self.filters or self.tcx)


@dataclass(frozen=True, slots=True, kw_only=True)
class Netdev:
    """A network device that belongs to an RDMA device, as it is on the host now."""

    name: str
    ifindex: int
    mac: str
    mtu: int
    up: bool
    max_mtu: int = 0
    """The most that its driver takes; 0 when that is not known."""
    unreturnable: tuple[str, ...] = ()
    """As in LinkState, when the node was read: why the netdev may be shared, but must not leave the host."""
    kind: str = ""
    """The kernel's word for a virtual link (``ipoib``, ``veth``); "" for hardware's own."""
    alias: str = ""
    addresses: tuple[str, ...] = ()
    """Its IP addresses with the length of their network's prefix, when the node was read."""
    programs: EbpfPrograms = EbpfPrograms()
    """The eBPF programs on it, when the node was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunction:
    """The place of a virtual function: its physical function, with that function's netdevs on the host, and the virtual
    function's number there."""

    pf: PciAddress
    number: int
    pf_netdevs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDevice:
    """One RDMA device, as requests get them.

    `pci_path` leads below `pci_root` (``pci0000:10``) over bridges to the function; both are empty without a PCI
    parent. `vendor` and `device_id` are four hexadecimal digits in lower case, or empty. `in_use` holds the reasons why
    the device may not be given to any pod; empty means free.
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
    """The kernel's own number, which no rename changes; None when the kernel does not know the device."""
    device_id: str = ""
    virtual: VirtualFunction | None = None
    """None for a device that is no virtual function."""
    subsystem: str = ""
    """The PCI subsystem's id, as `device_id`."""
    vf_count: int = 0
    """Number of virtual functions of a physical one."""
    max_vf_count: int = 0
    """The most virtual functions that it can have."""
    used_by_some: tuple[str, ...] = ()
    """Reasons that count as `in_use` while no pod holds the device: processes that have it open, and sockets on its
    addresses. While pods hold the device, these are taken to be the pods' own."""

    @property
    def uses(self) -> tuple[str, ...]:
        """The reasons why no pod may get the device while none holds it."""
        return (*self.in_use, *self.used_by_some)

    @property
    def ties(self) -> tuple[str, ...]:
        """The reasons why no pod can have the device alone, though pods may share it where it has no other use: what
        the host could not restore afterwards."""
        return tuple(f"{netdev.name} {reason}" for netdev in self.netdevs for reason in netdev.unreturnable)

    @property
    def link_layer(self) -> LinkLayer | None:
        """The link layer of the first port."""
        return self.ports[0].link_layer if self.ports else None

    @property
    def protocol(self) -> Protocol | None:
        """The protocol of the device; None for one that is none of the three (EFA, usNIC). An RNIC is a CA for
        iWARP."""
        if self.node_type == "RNIC":
            return Protocol.IWARP
        if self.node_type != "CA" or self.link_layer is None:
            return None
        return Protocol.IB if self.link_layer is LinkLayer.INFINIBAND else Protocol.ROCE

    @property
    def is_soft(self) -> bool:
        """Return whether the device has no bus device: soft RoCE and soft iWARP, which the kernel removes with their
        netdev."""
        return self.pci is None and not self.driver

    @property
    def lacks_netdev(self) -> bool:
        """Return whether the device needs a netdev and the host has none of it: the netdev is in another network
        namespace."""
        return not self.netdevs and self.link_layer is not LinkLayer.INFINIBAND

    @property
    def is_silent(self) -> bool:
        """Return whether the kernel gives no news of the device's ports: those of InfiniBand without a netdev."""
        return not self.netdevs and self.link_layer is LinkLayer.INFINIBAND

    @property
    def is_limited(self) -> bool:
        """Return whether all ports are limited members of their partitions."""
        return bool(self.ports) and all(port.is_limited for port in self.ports)

    @property
    def port_state(self) -> str:
        """The state of its ports, in the kernel's word: ACTIVE when one of them is, "" when none is known."""
        states = list(dict.fromkeys(port.state for port in self.ports))
        return "ACTIVE" if "ACTIVE" in states else " and ".join(states)

    @property
    def speed_gbps(self) -> int:
        """The speed of the fastest port."""
        return max((port.speed_gbps for port in self.ports), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, known by its PCI address.

    The rest are the names that other programs use: `uuid` is NVIDIA's (``GPU-`` and 36 characters), `node_names` are
    its device files without their folder (``nvidia0``, ``card1``, ``renderD128``), and `nodes` their major and minor.
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
    """A NUMA node and its CPUs, as ranges with both ends."""

    number: int
    cpus: tuple[tuple[int, int], ...]

    def has(self, cpu: int) -> bool:
        """Return whether the CPU is one of its own."""
        return any(first <= cpu <= last for first, last in self.cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The hardware that sysfs shows. `netdev_names` has the netdevs of each device, in the order of its ports."""

    devices: tuple[RdmaDevice, ...]
    netdev_names: Mapping[DeviceId, tuple[str, ...]]
    gpus: tuple[Gpu, ...]
    rdma_cm: CharDevice | None
    rdma_netns: RdmaNetns
    numa_nodes: tuple[NumaNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The hardware of a node. Devices are ordered by index, GPUs by address."""

    devices: tuple[RdmaDevice, ...]
    gpus: tuple[Gpu, ...]
    rdma_cm: CharDevice | None
    rdma_netns: RdmaNetns
    rdma_cgroup: bool
    """Whether containers' cgroups can have rdma limits: cgroup v2 with the rdma controller."""
    numa_nodes: tuple[NumaNode, ...] = ()
    capacities: Mapping[DeviceId, RdmaCapacity] = field(default_factory=dict)
    """The capacity of each device that was asked for it, and answered."""
    capacity_problems: Mapping[DeviceId, str] = field(default_factory=dict)
    """Why the capacity of a device is not known, of those that were asked."""

    def device(self, device_id: DeviceId) -> RdmaDevice | None:
        """Return the device with that identity."""
        return next((device for device in self.devices if device.id == device_id), None)
