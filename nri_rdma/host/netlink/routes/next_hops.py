"""Reads the next hop objects of links (`ip nexthop`), which the kernel removes, with their routes, when a link moves.

With net.ipv4.nexthop_compat_mode=0, a route through such an object does not name its link. A link with such routes is
therefore found by its objects.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Collection, Mapping

from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.wire.netlink import read_attributes

_RTM_GETNEXTHOP = 106  # include/uapi/linux/rtnetlink.h
_NHA_ID, _NHA_OIF = 1, 5  # include/uapi/linux/nexthop.h
_NHMSG = struct.Struct("=BBBBI")  # family, scope, protocol, reserved, flags
_FIRST_ATTRIBUTE = 16 + _NHMSG.size


def read_next_hops(route: RouteSocket, ifindexes: Collection[int]) -> Mapping[int, tuple[str, ...]]:
    """Return, for each of these links by ifindex, one text for each of its next hop objects. Each text continues a
    sentence that begins with the link's name. Raises KernelError if the kernel refuses the query, and WireError for a
    malformed message."""
    found: dict[int, list[str]] = {ifindex: [] for ifindex in ifindexes}
    for raw in route.dump(_RTM_GETNEXTHOP, _NHMSG.pack(0, 0, 0, 0, 0), "list next hop objects"):
        told = dict(read_attributes(raw[_FIRST_ATTRIBUTE:]))
        ifindex, number = (int.from_bytes(told.get(kind, b""), sys.byteorder) for kind in (_NHA_OIF, _NHA_ID))
        if ifindex in found:
            found[ifindex].append(f"has the next hop object {number} (`ip nexthop`)")
    return {ifindex: tuple(texts) for ifindex, texts in found.items()}
