"""The kernel's netlink reports about RDMA devices, as values.

GUIDs are written as in sysfs, in groups of four digits, so that facts from both sources can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaDeviceState:
    """An RDMA device, as seen from one network namespace. `index` is unique within a boot and survives a move."""

    index: int
    name: str
    node_guid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaPortState:
    """A port of an RDMA device. `netdev_index` is None if the port has no netdev in the namespace that reads it."""

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
    """A character device: its name under /dev/infiniband, and its major and minor number. Name and number change
    when the RDMA device moves to another namespace."""

    name: str
    major: int
    minor: int


class ObjectKind(StrEnum):
    """The kinds of objects on a device, in the words of `rdma resource`."""

    QP = "qp"
    CM_ID = "cm_id"
    MR = "mr"
    CTX = "ctx"


@dataclass(frozen=True, slots=True, kw_only=True)
class RdmaObject:
    """An object on an RDMA device, with its creator: a process, or a part of the kernel (``ib_core``, ``nvme_rdma``).

    `pid` is None for an object of the kernel, and 0 for a process outside this process's PID namespace. `process` is
    the process's name; netlink does not report it, so it is "" until the name is looked up.
    """

    kind: ObjectKind
    kernel_user: str
    pid: int | None
    process: str = ""
