"""How the host uses its links, as one reading of the namespace of the calling thread."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Collection, Iterable, Mapping

from nri_rdma.attach.port import KernelError
from nri_rdma.model.link import LinkState
from nri_rdma.model.usage import Address, HostUse, Lifelines
from nri_rdma.netlink.dumps import ask, dump
from nri_rdma.netlink.replay import attributes
from nri_rdma.netlink.routes import Route, default_links, parse_route, read_routes
from nri_rdma.netlink.rtnl import IPRoute, link_state
from nri_rdma.netlink.sockets import address_of, read_sockets

_RTM_GETADDR, _RTM_GETROUTE = 22, 26
_IFADDRMSG = struct.Struct("=BBBBI")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTM_F_FIB_MATCH = 0x2000  # the whole route, all paths of it, and not the one path that a packet would take
_RTA_DST = 1
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ESRCH, errno.EACCES, errno.EINVAL})
"""The kernel's words for an address that no route leads to, or one that forbids it (EINVAL: a blackhole)."""


def read_host_use(lifelines: Lifelines) -> HostUse:
    """All of it. Raises KernelError, NetlinkError or OSError."""
    with IPRoute() as ip:
        links = tuple(link_state(message) for message in ip.get_links())
    return host_use(links, read_routes((), ()), lifelines)


def host_use(links: Iterable[LinkState], routes: Collection[Route], lifelines: Lifelines) -> HostUse:
    """The use of these links, given the routes that were read beside them. Raises KernelError."""
    addresses = read_addresses()
    return HostUse(
        links=tuple(links),
        default_route_links=default_links(routes),
        addresses=addresses,
        sockets=read_sockets(frozenset().union(*addresses.values())),
        lifelines=lifelines,
        api_server_links=links_to(lifelines.api_server) if lifelines.api_server is not None else frozenset(),
    )


def read_addresses() -> Mapping[int, frozenset[Address]]:
    """The addresses of every link, by ifindex. Raises KernelError."""
    found: dict[int, set[Address]] = {}
    for message in dump(socket.NETLINK_ROUTE, _RTM_GETADDR, _IFADDRMSG.pack(0, 0, 0, 0, 0)):
        *_, ifindex = _IFADDRMSG.unpack_from(message, 16)
        told = dict(attributes(message[24:]))
        address = address_of(told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS, b"\0" * 4))
        if address is not None:
            found.setdefault(ifindex, set()).add(address)
    return {ifindex: frozenset(addresses) for ifindex, addresses in found.items()}


def links_to(address: Address) -> frozenset[int]:
    """The links that the kernel's route to an address leads to, all paths of it; none where there is no route. Raises
    KernelError."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _RTMSG.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    body += struct.pack("=HH", 4 + len(address.packed), _RTA_DST) + address.packed
    try:
        answers = ask(socket.NETLINK_ROUTE, _RTM_GETROUTE, body)
    except KernelError as error:
        if error.errno in _NO_ROUTE:
            return frozenset()
        raise
    return frozenset().union(*((route.paths | {route.link}) - {0} for route in map(parse_route, answers)))
