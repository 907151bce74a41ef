"""Chooses the entry of a port's GID table by which a pod is to send.

The program that proves RDMA in a pod is run by the distribution's Python (nri_rdma.host.verbs): this module imports the
standard library and `model.gid` alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address

from nri_rdma.model.gid import Gid, GidType


def choose(
    table: Iterable[Gid], addresses: Collection[IPv4Address | IPv6Address] = (), roce_version: int = 2
) -> Gid | None:
    """Return the GID by which a port sends, None where no entry of its table is usable.

    On RoCE only entries of `roce_version` (1 or 2) count. Those of `addresses`, the pod's own, come first. After that
    come routable ones, IPv4 before IPv6 (NCCL asks for IPv4 by default), and the lowest index. Ports of InfiniBand send
    by their first entry.
    """
    wanted = {GidType.IB, GidType.ROCE_V1 if roce_version == 1 else GidType.ROCE_V2}
    usable = [gid for gid in table if gid.type in wanted and not gid.value.is_unspecified]
    return min(usable, key=lambda gid: _order(gid, addresses), default=None)


def _order(gid: Gid, addresses: Collection[IPv4Address | IPv6Address]) -> tuple[bool, bool, bool, int]:
    if gid.type is GidType.IB:
        return False, False, False, gid.index
    address = gid.address
    return address not in addresses, address.is_link_local, isinstance(address, IPv6Address), gid.index
