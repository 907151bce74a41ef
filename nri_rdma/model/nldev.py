"""The kernel's report about RDMA devices over netlink.

Words are those of sysfs (``CA``, ``ACTIVE``, ``LinkUp``, GUIDs in groups of four digits), so that both sources of one
fact can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from nri_rdma.model.device import RdmaNetns


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDeviceState:
    """An RDMA device as the namespace that was asked sees it. `index` is unique per boot and survives a move.

    `firmware` and `protocol` are empty when the driver reports none.
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
    """A port. `lid` is 0 where there are none (RoCE, iWARP); `netdev_index` is None when no netdev of this namespace
    belongs to it."""

    device_index: int
    number: int
    state: str
    phys_state: str
    lid: int
    netdev_index: int | None
    netdev_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaNetdevs:
    """An RDMA device with the interface numbers of its ports' netdevs, as far as they are in the namespace that was
    asked, in the order of the ports."""

    index: int
    name: str
    node_guid: str
    ifindexes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CharNumber:
    """A character device: its name below /dev/infiniband and its number. Both change when the RDMA device moves."""

    name: str
    abi: int
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaSystem:
    """Settings of the whole RDMA subsystem. Without `monitor` the kernel sends no events (before 6.12)."""

    netns: RdmaNetns
    monitor: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The number of objects of a kind that a device has, or the value of one of its counters."""

    name: str
    value: int


class ObjectKind(StrEnum):
    """The kinds of objects on a device, by the words of `rdma resource`."""

    QP = "qp"
    CM_ID = "cm_id"
    MR = "mr"
    CTX = "ctx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaObject:
    """An object on a device, with who made it: a process, or a part of the kernel (``ib_core``, ``nvme_rdma``).

    `pid` is None for the kernel's own, and 0 for a process that this one's pid namespace does not show. `type` is the
    kernel's number of the QP's type; None for what has no type. `process` is the name of the process where it was
    looked up, which netlink does not report.
    """

    kind: ObjectKind
    kernel_user: str
    pid: int | None
    type: int | None
    process: str = ""


class RdmaEventKind(StrEnum):
    """The kind of an event, by the words of `rdma monitor`."""

    REGISTER = "register"
    UNREGISTER = "unregister"
    NETDEV_ATTACH = "netdev attach"
    NETDEV_DETACH = "netdev detach"
    RENAME = "rename"
    NETDEV_RENAME = "netdev rename"
    OTHER = "other"
    """A kind that is newer than this code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaEvent:
    """An event. `port` and `netdev_index` are None where the event has none; so is `device_index`, when a netdev was
    renamed or is in another namespace: the event may then concern any device."""

    kind: RdmaEventKind
    device_index: int | None
    port: int | None
    netdev_index: int | None
