"""Reads the qdiscs, forwarding entries, neighbour table settings and next hop objects that links lose when they move to
another namespace. The kernel lists them for several links at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nri_rdma.host.netlink.links.sysctls import read_neighbour_tables
from nri_rdma.host.netlink.qos.disciplines import Queues, read_queues
from nri_rdma.host.netlink.restore.forwarding import read_forwarding
from nri_rdma.host.netlink.routes.next_hops import read_next_hops
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.link import Captured


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """The qdiscs, forwarding entries, neighbour table settings and next hop objects of one link, which it loses with a
    move to another namespace.

    `neighbour_table` has the settings as lines of LinkState.sysctls, `next_hops` the objects as texts of
    LinkState.unreturnable.
    """

    queues: Queues
    forwarding: tuple[Captured, ...]
    neighbour_table: str
    next_hops: tuple[str, ...]


def read_carried(route: RouteSocket, ifindexes: Collection[int]) -> Mapping[int, Carried]:
    """Return the qdiscs, forwarding entries, neighbour table settings and next hop objects of each link, by ifindex.

    The calling thread must be in the links' namespace. Raises KernelError if the kernel refuses a query, and WireError
    for a malformed message.
    """
    queues = read_queues(route, ifindexes)
    forwarding = read_forwarding(route, ifindexes)
    tables = read_neighbour_tables(route, ifindexes)
    next_hops = read_next_hops(route, ifindexes)
    return {
        ifindex: Carried(
            queues=queues[ifindex],
            forwarding=forwarding[ifindex],
            neighbour_table=tables[ifindex],
            next_hops=next_hops[ifindex],
        )
        for ifindex in ifindexes
    }
