"""An entry of a port's GID table: an address of the port on the fabric.

The distribution's Python, which may be 3.10, imports this module, too (nri_rdma.host.verbs).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address


class GidType(str, Enum):
    """The type of a GID, as the kernel writes it in sysfs."""

    __str__ = str.__str__

    IB = "IB"
    """An InfiniBand GID. Kernels before 5.15 write `IB/RoCE v1` for this type and for RoCE v1."""
    ROCE_V1 = "RoCE v1"
    ROCE_V2 = "RoCE v2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gid:
    """A used entry of a GID table. `netdev` is the name of the netdev that the GID belongs to, "" if there is none."""

    index: int
    value: IPv6Address
    type: GidType
    netdev: str = ""

    @property
    def address(self) -> IPv4Address | IPv6Address:
        """Return the IP address of the GID. RoCE writes IPv4 as ``::ffff:A.B.C.D``."""
        return self.value.ipv4_mapped or self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGid:
    """The GID that a port sends with in a pod. `gid` is None if no entry of the port's table is usable."""

    device: str
    port: int
    gid: Gid | None
    is_own: bool = False
    """Whether the GID's address is an address of the pod. False if only the host has the address."""
    others: tuple[IPv4Address | IPv6Address, ...] = ()
    """The other addresses that have GIDs on this port, without link-local ones; a program may choose one of these."""

    @property
    def place(self) -> str:
        """Return the port as NCCL, UCX and NVSHMEM write it, for example ``mlx5_0:1``."""
        return f"{self.device}:{self.port}"
