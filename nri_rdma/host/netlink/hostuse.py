"""Reads how the host uses its links (addresses, routes, sockets, eBPF programs), in the calling thread's namespace, and
remembers the result."""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from nri_rdma.attach.port import KernelError, Survey
from nri_rdma.host.netlink.links.link_state import UNREADABLE, parse_link, parse_start, read_links, tied_to
from nri_rdma.host.netlink.links.sysctls import costs_of_return, forwarding_of
from nri_rdma.host.netlink.links.tcx import names_of, read_tcx
from nri_rdma.host.netlink.qos.disciplines import Queues, read_queues
from nri_rdma.host.netlink.restore.link_contents import AddressMessage, read_addresses
from nri_rdma.host.netlink.routes.next_hops import read_next_hops
from nri_rdma.host.netlink.routes.pod_routing import routing_of_defaults
from nri_rdma.host.netlink.routes.routes import Route, default_links, parse_route, read_routes, unreturnable
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.host.netlink.tied_sockets import address_of, read_sockets
from nri_rdma.model.device import EbpfPrograms
from nri_rdma.model.link import LinkState
from nri_rdma.model.usage import Address, HostUse, Lifelines
from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import HEADER

log = logging.getLogger(__name__)

_RTM_GETROUTE = 26
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTM_F_FIB_MATCH = 0x2000  # the whole route with all its paths, not just the path that a packet would take
_RTA_DST = 1
_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ESRCH, errno.EACCES, errno.EINVAL})
"""The kernel's errors if no route leads to an address, or if a route forbids packets to it (EINVAL: a blackhole)."""


class HostReader:
    """Reads how the host uses its links. It parses only the links that have changed since the last reading, because a
    busy node has hundreds of links. Safe for use by several threads."""

    def __init__(self, lifelines: Lifelines) -> None:
        self._lifelines = lifelines
        self._links: Mapping[bytes, LinkState] = {}
        self._unreadable: frozenset[str] = frozenset()
        """The names of the links whose newest message could not be parsed."""
        self._last = Survey(use=HostUse(), links={})
        """The newest reading, with the links about which `remembered` can answer."""

    def read(self, route: RouteSocket, netdevs: Collection[str] = ()) -> HostUse:
        """Read how the host uses all its links, and return it. For the links named in `netdevs`, also read what the
        host could not restore after a move; the method `remembered` can later return this without another reading.

        Raises KernelError if the kernel refuses a query, WireError for a malformed message, or OSError.
        """
        links = {_body(message): (message, self.parsed(message)) for message in read_links(route)}
        self._links = {body: link for body, (_, link) in links.items()}
        self._warn_of_unreadable()
        addresses = read_addresses(route)
        wanted = {
            link.ifindex: (message, link)
            for message, link in links.values()
            if link.name in netdevs and link.kind != UNREADABLE
        }
        routes = self._settled_routes(wanted.keys(), _own_of(wanted, addresses))
        queues = read_queues(route, wanted.keys())
        returning = _returning(route, queues, wanted, addresses, routes) if routes is not None else {}
        every = [returning.get(link.ifindex, link) for link in self._links.values()]
        use = host_use(route, every, addresses, routes or (), self._lifelines)
        use = replace(use, routing=routing_of_defaults(route, addresses, routes or ()), programs=read_programs(queues))
        if routes is None:  # safe for attaches: `survey` reads the routes again
            last = self._last.use
            use = replace(use, default_route_links=last.default_route_links, routing=last.routing)
        self._last = Survey(use=use, links=returning)
        return with_sockets(use)

    def survey(self, route: RouteSocket, ifindexes: Collection[int]) -> Survey:
        """Read how the host uses these links now. `use.links` of the result also has their masters, slaves and
        children.

        Raises KernelError if the kernel refuses a query or its message of one of these links cannot be parsed.
        """
        tied = {message: self.parsed(message) for message in tied_to(ifindexes, read_links(route))}
        wanted = {link.ifindex: (message, link) for message, link in tied.items() if link.ifindex in ifindexes}
        unreadable = [link.name for _, link in wanted.values() if link.kind == UNREADABLE]
        if unreadable:
            raise KernelError("read the host's links", errno.EPROTO, f"cannot parse {', '.join(unreadable)}")
        addresses = read_addresses(route)
        routes = read_routes(wanted.keys(), _own_of(wanted, addresses))
        own = [address for address in addresses if address.ifindex in wanted]
        return Survey(
            use=replace(
                host_use(route, tied.values(), own, routes, self._lifelines),
                routing=routing_of_defaults(route, addresses, routes),
            ),
            links=_returning(route, read_queues(route, wanted.keys()), wanted, addresses, routes),
        )

    def remembered(self, route: RouteSocket, ifindexes: Collection[int]) -> Survey | None:
        """Return how the host uses these links, from the last call of `read`; None if that call did not read one of
        them. Only what the kernel does not announce is queried again.

        The caller guarantees that the kernel has announced no change since that call.
        """
        last = self._last
        if not all(ifindex in last.links for ifindex in ifindexes):
            return None
        addresses = {ifindex: last.use.addresses[ifindex] for ifindex in ifindexes if ifindex in last.use.addresses}
        networks = {ifindex: last.use.networks[ifindex] for ifindex in ifindexes if ifindex in last.use.networks}
        near = {*ifindexes, *(last.links[ifindex].master for ifindex in ifindexes)} - {0}
        return Survey(
            use=replace(
                last.use,
                links=tuple(it for it in last.use.links if not near.isdisjoint((it.ifindex, it.lower, it.master))),
                addresses=addresses,
                networks=networks,
                api_server_links=_api_server_links(route, self._lifelines),
            ),
            links=last.links,
        )

    def readable(self, messages: Collection[bytes]) -> tuple[LinkState, ...]:
        """Return the links of these netlink messages. Messages that cannot be parsed are skipped."""
        return tuple(link for message in messages if (link := self.parsed(message)).kind != UNREADABLE)

    def parsed(self, message: bytes) -> LinkState:
        """Return the link of a netlink message, without its addresses and routes.

        If the message is malformed, return only what its beginning says (the kind is UNREADABLE). Callers need at least
        the master and the lower link: a link with an unreadable slave or child is in use.
        """
        known = self._links.get(_body(message))
        if known is not None:
            return known
        try:
            return parse_link(message)
        except WireError:
            return parse_start(message)

    def _settled_routes(self, ifindexes: Collection[int], sources: Collection[bytes]) -> tuple[Route, ...] | None:
        """Return the routes that concern these links; None if the routing table changes faster than it can be read.

        With None, the node is read without routes. If the table still changes when a pod asks for a device, that pod is
        refused.
        """
        try:
            return read_routes(ifindexes, sources)
        except KernelError as error:
            if error.errno != errno.EAGAIN:
                raise
            log.warning("routes not read, keeping the default routes of the last reading", extra={"error": str(error)})
            return None

    def _warn_of_unreadable(self) -> None:
        """Log a warning for each link whose message cannot be parsed. A warning is not repeated while the link stays
        unreadable."""
        unreadable = frozenset(link.name for link in self._links.values() if link.kind == UNREADABLE)
        for name in sorted(unreadable - self._unreadable):
            log.warning("the kernel's message of a link cannot be parsed, the link is skipped", extra={"link": name})
        self._unreadable = unreadable


def _own_of(links: Collection[int], addresses: Iterable[AddressMessage]) -> set[bytes]:
    return {address.own for address in addresses if address.ifindex in links}


def read_programs(queues: Mapping[int, Queues]) -> Mapping[int, EbpfPrograms]:
    """Return the eBPF programs on links, by ifindex; links without programs are left out. `queues` are the links'
    filters, which may be programs. The calling thread must be in the links' namespace."""
    found = {
        ifindex: EbpfPrograms(filters=of_link.programs, tcx=names_of(read_tcx(ifindex) or ()))
        for ifindex, of_link in queues.items()
    }
    return {ifindex: programs for ifindex, programs in found.items() if programs.are_there}


def _returning(
    route: RouteSocket,
    queues: Mapping[int, Queues],
    links: Mapping[int, tuple[bytes, LinkState]],
    addresses: Collection[AddressMessage],
    routes: Collection[Route],
) -> Mapping[int, LinkState]:
    """Return these links, each with the reasons why the host could not restore it fully after a move. Raises
    KernelError if a setting under /proc/sys/net cannot be read, or if the kernel does not list its next hop objects."""
    next_hops = read_next_hops(route, links.keys())
    return {
        ifindex: replace(
            link,
            unreturnable=(
                *unreturnable(ifindex, _own_of({ifindex}, addresses), routes),
                *next_hops[ifindex],
                *costs_of_return(forwarding_of(message), routes),
                *queues[ifindex].unreturnable,
            ),
        )
        for ifindex, (message, link) in links.items()
    }


def _body(message: bytes) -> bytes:
    """Return a message without its header, whose sequence number differs between requests."""
    return message[HEADER.size :]


def host_use(
    route: RouteSocket,
    links: Iterable[LinkState],
    messages: Iterable[AddressMessage],
    routes: Collection[Route],
    lifelines: Lifelines,
) -> HostUse:
    """Return the host's use of these links. `messages` are their addresses and `routes` their routes. The fields
    `sockets` and `routing` of the result are empty.

    Raises KernelError if the route to the API server cannot be queried.
    """
    addresses, networks = _by_link(messages)
    return HostUse(
        links=tuple(links),
        default_route_links=default_links(routes),
        addresses=addresses,
        networks=networks,
        lifelines=lifelines,
        api_server_links=_api_server_links(route, lifelines),
    )


def with_sockets(use: HostUse) -> HostUse:
    """Return `use` completed with the sockets that are now bound to its links or their addresses. The calling thread
    must be in the links' namespace. Raises KernelError if the kernel does not list its sockets."""
    return replace(use, sockets=read_sockets(frozenset().union(*use.addresses.values())))


def _api_server_links(route: RouteSocket, lifelines: Lifelines) -> frozenset[int]:
    return links_to(route, lifelines.api_server) if lifelines.api_server is not None else frozenset()


def _by_link(
    messages: Iterable[AddressMessage],
) -> tuple[Mapping[int, frozenset[Address]], Mapping[int, tuple[str, ...]]]:
    """Return the IP addresses of each link by ifindex, and a second mapping with each address and its prefix length as
    text."""
    found: dict[int, set[Address]] = {}
    networks: dict[int, list[str]] = {}
    for message in messages:
        address = address_of(message.own) if message.own else None
        if address is not None:
            found.setdefault(message.ifindex, set()).add(address)
            networks.setdefault(message.ifindex, []).append(f"{address}/{message.prefix_length}")
    by_link = {ifindex: frozenset(addresses) for ifindex, addresses in found.items()}
    return by_link, {ifindex: tuple(texts) for ifindex, texts in networks.items()}


def links_to(route: RouteSocket, address: Address) -> frozenset[int]:
    """Return the ifindexes of all paths of the kernel's route to an address; empty if there is no route. Raises
    KernelError if the kernel does not answer."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    body = _RTMSG.pack(family, address.max_prefixlen, 0, 0, 0, 0, 0, 0, _RTM_F_FIB_MATCH)
    body += struct.pack("=HH", 4 + len(address.packed), _RTA_DST) + address.packed
    try:
        found = parse_route(route.ask(_RTM_GETROUTE, body, f"find the route to {address}"))
    except KernelError as error:
        if error.errno in _NO_ROUTE:
            return frozenset()
        raise
    return frozenset((found.paths | {found.link}) - {0})
