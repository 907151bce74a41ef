"""Chooses the entry of a port's GID table with which a pod should send.

Imports only the standard library and `model.gid`: the test program that moves data in a pod (nri_rdma.host.verbs) uses
this module, too, and is run by the distribution's Python.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from ipaddress import IPv4Address, IPv6Address

from nri_rdma.model.gid import Gid, GidType


def choose(
    table: Iterable[Gid], addresses: Collection[IPv4Address | IPv6Address] = (), roce_version: int = 2
) -> Gid | None:
    """Return the GID with which a port sends; None if no entry of its table is usable.

    On RoCE only entries of `roce_version` (1 or 2) are usable. The order of preference is: a GID of one of `addresses`,
    which are the pod's own; a routable GID rather than a link-local one; IPv4 rather than IPv6 (NCCL's default); the
    lowest index. On InfiniBand the first entry is chosen.
    """
    wanted = {GidType.IB, GidType.ROCE_V1 if roce_version == 1 else GidType.ROCE_V2}
    usable = [gid for gid in table if gid.type in wanted and not gid.value.is_unspecified]
    return min(usable, key=lambda gid: _order(gid, addresses), default=None)


def _order(gid: Gid, addresses: Collection[IPv4Address | IPv6Address]) -> tuple[bool, bool, bool, int]:
    if gid.type is GidType.IB:
        return False, False, False, gid.index
    address = gid.address
    return address not in addresses, address.is_link_local, isinstance(address, IPv6Address), gid.index
