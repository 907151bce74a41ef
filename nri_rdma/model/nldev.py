"""The kernel's netlink reports about RDMA devices, as values.

They use the words of sysfs (``CA``, ``ACTIVE``, ``LinkUp``, GUIDs in groups of four digits), so that facts from both
sources can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.model.device import RdmaNetns


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDeviceState:
    """An RDMA device, as seen from one network namespace. `index` is unique within a boot and survives a move.

    `firmware` and `protocol` are empty if the driver reports none.
    """

    index: int
    name: str
    ports: int
    node_type: str
    node_guid: str
    firmware: str
    protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPortState:
    """A port of an RDMA device. `lid` is 0 for protocols without LIDs (RoCE, iWARP). `netdev_index` is None if the port
    has no netdev in the namespace that reads it."""

    device_index: int
    number: int
    state: str
    phys_state: str
    lid: int
    netdev_index: int | None
    netdev_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNetdevs:
    """An RDMA device with the interface numbers of its ports' netdevs, in the order of the ports. Netdevs outside the
    reader's network namespace are left out."""

    index: int
    name: str
    node_guid: str
    ifindexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CharNumber:
    """A character device: its name under /dev/infiniband, the version of its interface, and its major and minor number.
    Name and number change when the RDMA device moves to another namespace."""

    name: str
    abi: int
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaSystem:
    """The settings of the RDMA subsystem. Without `monitor` (before Linux 6.12) the kernel sends no events about RDMA
    devices."""

    netns: RdmaNetns
    monitor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The number of a device's objects of one kind, or the value of one of its counters."""

    name: str
    value: int


class ObjectKind(StrEnum):
    """The kinds of objects on a device, in the words of `rdma resource`."""

    QP = "qp"
    CM_ID = "cm_id"
    MR = "mr"
    CTX = "ctx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaObject:
    """An object on an RDMA device, with its creator: a process, or a part of the kernel (``ib_core``, ``nvme_rdma``).

    `pid` is None for an object of the kernel, and 0 for a process outside this process's PID namespace. `type` is the
    kernel's number of a queue pair's type; None for other objects. `process` is the process's name; netlink does not
    report it, so it is "" until the name is looked up.
    """

    kind: ObjectKind
    kernel_user: str
    pid: int | None
    type: int | None
    process: str = ""


class RdmaEventKind(StrEnum):
    """The kinds of events, in the words of `rdma monitor`."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    NETDEV_ATTACH = "netdev attach"
    NETDEV_DETACH = "netdev detach"
    RENAME = "rename"
    NETDEV_RENAME = "netdev rename"
    OTHER = "other"
    """A kind that this code does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaEvent:
    """An event about an RDMA device. `port` and `netdev_index` are None for events without them. `device_index` is None
    if a netdev was renamed or is in another namespace. The event may then concern any device."""

    kind: RdmaEventKind
    device_index: int | None
    port: int | None
    netdev_index: int | None
