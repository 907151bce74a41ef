"""An entry of the GID table of a port: what an RDMA device is addressed by.

The distribution's Python imports this too (nri_rdma.host.verbs), and may be 3.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address


class GidType(str, Enum):
    """The type of a GID, as the kernel writes it in sysfs."""

    __str__ = str.__str__

    IB = "IB"
    """Of InfiniBand. Kernels before 5.15 write it as `IB/RoCE v1`, as they do for RoCE v1."""
    ROCE_V1 = "RoCE v1"
    ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """A GID that is in use; `netdev` is the name of the netdev that it belongs to, "" where it belongs to none."""

    index: int
    value: IPv6Address
    type: GidType
    netdev: str = ""

    @property
    def address(self) -> IPv4Address | IPv6Address:
        """Return the IP address that the GID stands for: RoCE has IPv4 as ``::ffff:A.B.C.D``."""
        return self.value.ipv4_mapped or self.value

    @property
    def is_routable(self) -> bool:
        """Return whether packets to it may pass a router: only those of RoCE v2 can, and none of a link-local address
        do."""
        return self.type is GidType.ROCE_V2 and not self.address.is_link_local


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGid:
    """The GID by which a port of a device sends in a pod; `gid` None: no entry of its table is usable."""

    device: str
    port: int
    gid: Gid | None
    is_own: bool = False
    """Whether it is the GID of an address of the pod, not only of one of the host's."""
    others: tuple[IPv4Address | IPv6Address, ...] = ()
    """The other addresses that have GIDs there, without link-local ones: a program may take one of these instead."""

    @property
    def place(self) -> str:
        """Return the port as NCCL, UCX and NVSHMEM write it."""
        return f"{self.device}:{self.port}"
