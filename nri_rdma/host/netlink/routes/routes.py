"""Reads routes as the kernel's bytes, and parses only the routes that concern some links.

A router has routes by the hundred thousand, nearly all of them irrelevant here. Decoding all of them with pyroute2 kept
Python's global lock for a second and more. A route is skipped as soon as its bytes show that it is no default route and
contains none of the requested ifindexes and addresses.
"""

from __future__ import annotations

import errno
import re
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.restore.replay import RTA_CACHEINFO, RTA_EXPIRES
from nri_rdma.host.netlink.sockets.dumps import DUMP_INTERRUPTED, read_whole
from nri_rdma.host.netlink.sockets.spare_sockets import momentary
from nri_rdma.model.link import Captured
from nri_rdma.model.routing import SHARED_TABLES
from nri_rdma.wire.netlink import encode_u32, read_attributes

_RTM_GETROUTE = 26
_SOL_NETLINK, _ADD_MEMBERSHIP, _DROP_MEMBERSHIP, _STRICT = 270, 1, 2, 12  # include/uapi/linux/netlink.h
_RTNLGRP_IPV6_ROUTE = 11
_DATAGRAM_MAX = 1 << 16  # the kernel sends routes in at most 32 KiB (net/netlink/af_netlink.c)
_DATAGRAMS_OF_SHORT = 2
"""The number of datagrams of a short list: one with the routes, and one with the end of the list."""
_REQUEST_DUMP = 0x1 | 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
_LENGTH_AND_KIND = struct.Struct("=IH")
_FLAGS, _FLAGS_AT = struct.Struct("=H"), 6
_ROUTE = struct.Struct("=BBBBBBBBI")  # struct rtmsg
_DST_LEN_AT = 17
_PATH = struct.Struct("=HBBI")  # struct rtnexthop
_AF_INET6 = 10
_RTPROT_KERNEL, _RTPROT_RA = 2, 9
_RTN_UNICAST = 1
_RT_TABLE_LOCAL = 255
_RTM_F_CLONED = 0x200
_RTNH_F_ONLINK = 4
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_MULTIPATH, _RTA_TABLE, _RTA_NH_ID = (
    1,
    2,
    4,
    5,
    6,
    7,
    9,
    15,
    30,
)
_RTA_ADDRESSES = {_RTA_SRC: "from", _RTA_GATEWAY: "via", _RTA_PREFSRC: "src"}
_RTA_VIA = 18  # struct rtvia: the gateway's family (2 bytes), then its address
_RTA_NUMBERS = {_RTA_PRIORITY: "metric", _RTA_TABLE: "table"}


_ANY = re.compile(b"")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of IPv4 or IPv6, parsed from the kernel's message `raw`. `attributes` are in the kernel's order; `paths`
    are the ifindexes of a multipath route."""

    raw: bytes
    family: int
    prefix: int
    tos: int
    table: int
    proto: int
    scope: int
    type: int
    flags: int
    attributes: tuple[tuple[int, bytes], ...]
    link: int
    """The ifindex of the route's link; 0 if it leads to no link or to several."""
    paths: frozenset[int]

    def get(self, kind: int) -> bytes:
        """Return the bytes of an attribute; b"" if the route does not have it."""
        return next((data for number, data in self.attributes if number == kind), b"")

    @property
    def destination(self) -> str:
        default = "::" if self.family == _AF_INET6 else "0.0.0.0"
        return f"{_address(self.get(_RTA_DST)) or default}/{self.prefix}"

    @property
    def table_number(self) -> int:
        """The number of the routing table, which is in an attribute if it is above 255."""
        said = self.get(_RTA_TABLE)
        return int.from_bytes(said, sys.byteorder) if said else self.table

    @property
    def metric(self) -> int:
        """The metric of the route; 0 if the route has none."""
        return int.from_bytes(self.get(_RTA_PRIORITY), sys.byteorder)

    @property
    def gateway(self) -> bytes:
        """The bytes of the gateway's address; b"" if the route has none."""
        return self.get(_RTA_GATEWAY)

    @property
    def is_cached(self) -> bool:
        """Return whether this is an entry of the kernel's route cache, a copy of another route."""
        return bool(self.flags & _RTM_F_CLONED)

    @property
    def is_announced(self) -> bool:
        """Return whether the kernel added this route after a router advertisement (IPv6)."""
        return self.family == _AF_INET6 and self.proto == _RTPROT_RA

    @property
    def default_links(self) -> frozenset[int]:
        """The ifindexes of all paths of a default route; empty for other routes."""
        if self.prefix or self.get(_RTA_DST) or self.type != _RTN_UNICAST:
            return frozenset()
        return (self.paths | {self.link}) - {0}


def read_routes(ifindexes: Collection[int], sources: Collection[bytes]) -> tuple[Route, ...]:
    """Return the default routes, and the routes that lead to one of these links or contain one of the addresses
    `sources` (bytes). The result may contain some other routes.

    Covers all routing tables of IPv4 and IPv6 in the calling thread's namespace.
    """
    needles = [struct.pack("=I", ifindex) for ifindex in ifindexes] + list(sources)
    pattern = re.compile(b"|".join(re.escape(needle) for needle in needles)) if needles else None
    return tuple(parse_route(raw) for raw in _dump(pattern, b""))


def read_routes_of(ifindex: int) -> tuple[Route, ...]:
    """Return the routes that lead to a link, multipath routes included. The calling thread must be in the link's
    namespace.

    The kernel selects the routes (RTA_OIF). As these few routes fit one datagram, the list is consistent even if other
    routes change all the time.
    """
    return tuple(parse_route(raw) for raw in _dump(_ANY, encode_u32(_RTA_OIF, ifindex)))


def read_all_routes() -> tuple[Route, ...]:
    """Return the routes of all IPv4 and IPv6 tables in the calling thread's namespace."""
    return tuple(parse_route(raw) for raw in _dump(_ANY, b""))


def default_links(routes: Iterable[Route]) -> frozenset[int]:
    """Return the ifindexes of the links of all default routes. Only default routes in the tables that every packet
    passes through (SHARED_TABLES) count."""
    return frozenset().union(*(it.default_links for it in routes if it.table_number in SHARED_TABLES))


def parse_route(raw: bytes) -> Route:
    """Return the route of one message of the kernel. Raises WireError for a malformed message."""
    family, prefix, _, tos, table, proto, scope, kind, flags = _ROUTE.unpack_from(raw, 16)
    found = tuple(read_attributes(raw[28:]))
    by_kind = dict(found)
    return Route(
        raw=raw,
        family=family,
        prefix=prefix,
        tos=tos,
        table=table,
        proto=proto,
        scope=scope,
        type=kind,
        flags=flags,
        attributes=found,
        link=int.from_bytes(by_kind.get(_RTA_OIF, b""), sys.byteorder),
        paths=frozenset(_paths(by_kind.get(_RTA_MULTIPATH, b""))),
    )


def captured_route(route: Route) -> Captured | None:
    """Return the route in a form that can be restored. None for a route that the kernel makes itself: an entry of its
    route cache, or of the table `local`."""
    if route.flags & _RTM_F_CLONED:
        return None
    if route.proto == _RTPROT_KERNEL and route.table == _RT_TABLE_LOCAL:
        return None
    text = (
        f"{route.destination} type {route.type} proto {route.proto} scope {route.scope} "
        f"tos {route.tos}{' onlink' if route.flags & _RTNH_F_ONLINK else ''}"
    )
    for kind, data in route.attributes:
        if kind not in {_RTA_DST, _RTA_OIF, RTA_CACHEINFO, RTA_EXPIRES}:
            text += f" {_words(kind, data)}"
    return Captured(text=text, raw=route.raw, kernel_made=route.proto == _RTPROT_KERNEL and _is_link_local(route))


def captured_routes(routes: Collection[Route], ifindex: int) -> tuple[Captured, ...]:
    """Return the routes of a link in a form that can be restored. Routes through a gateway come last, because the
    kernel accepts them only after the routes to the gateway's network."""
    found = [captured for route in routes if route.link == ifindex and (captured := captured_route(route)) is not None]
    return tuple(sorted(found, key=lambda route: " via " in route.text))


def unreturnable(ifindex: int, own: Collection[bytes], routes: Collection[Route]) -> tuple[str, ...]:
    """Return what the host would lose if this link moved away, and could not restore. `own` holds the bytes of the
    link's addresses.

    Each text continues a sentence that begins with the link's name.
    """
    found = {
        f"has the multicast address {_address(it)}, whose group the kernel would not join again"
        for it in own
        if len(it) in {4, 16} and ip_address(it).is_multicast
    }
    for route in routes:
        if ifindex in route.paths:
            found.add(f"is used by the multipath route {route.destination}")
        elif route.link == ifindex:
            if route.get(_RTA_NH_ID):
                found.add(f"is used by the route {route.destination} through a next hop object")
        elif route.table != _RT_TABLE_LOCAL and route.get(_RTA_PREFSRC) in own:
            found.add(f"has the source address for the route {route.destination} through another link")
    return tuple(sorted(found))


def _dump(pattern: re.Pattern[bytes] | None, wanted: bytes) -> list[bytes]:
    """Return the kernel's messages of all default routes, and of other routes whose bytes match `pattern` (None: no
    others), in the calling thread's namespace. `wanted` has netlink attributes by which the kernel selects routes; b""
    selects all."""
    return read_whole("list routes", lambda: _dump_once(pattern, wanted))


def _dump_once(pattern: re.Pattern[bytes] | None, wanted: bytes) -> tuple[list[bytes], bool]:
    """Request one list of routes. Return the messages of default routes and of routes that match `pattern` (see
    `_dump`), and True if the routing table changed meanwhile.

    For IPv6, the kernel does not report such a change: if a route comes or goes between two datagrams, it walks its
    tree again and skips as many routes as it has sent (fib6_dump_table), which may now be different ones. Events of
    IPv6 routes are therefore watched during the request. A list in one datagram is consistent.
    """
    every: list[bytes] = []
    datagrams = 0
    with _open() as sock, _open() as news, _hearing(news) as has_heard:
        sock.setsockopt(_SOL_NETLINK, _STRICT, 1)
        sock.send(_HEADER.pack(28 + len(wanted), _RTM_GETROUTE, _REQUEST_DUMP, 1, 0) + bytes(12) + wanted)
        done = interrupted = False
        while not done:
            answer = sock.recv(_DATAGRAM_MAX)
            found, done = _candidates(answer, pattern)
            every += found
            datagrams += 1
            interrupted = interrupted or bool(_FLAGS.unpack_from(answer, _FLAGS_AT)[0] & DUMP_INTERRUPTED)
        has_changed = datagrams > _DATAGRAMS_OF_SHORT and has_heard()
    return every, interrupted or has_changed


def _open() -> AbstractContextManager[socket.socket]:
    return momentary(socket.NETLINK_ROUTE)


@contextmanager
def _hearing(news: socket.socket) -> Iterator[Callable[[], bool]]:
    """Let the socket receive events of IPv6 routes while the block runs. Yields a function that returns whether an
    event came or was lost."""

    def has_heard() -> bool:
        try:
            return bool(news.recv(1, socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            return True

    news.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _RTNLGRP_IPV6_ROUTE)
    yield has_heard
    news.setsockopt(_SOL_NETLINK, _DROP_MEMBERSHIP, _RTNLGRP_IPV6_ROUTE)
    while has_heard():
        pass  # the socket's next user must not receive these events


def _candidates(answer: bytes, pattern: re.Pattern[bytes] | None) -> tuple[list[bytes], bool]:
    """Return the messages in one datagram that are default routes or match `pattern`, and True if the list of routes
    ends here. Raises KernelError if the datagram reports an error."""
    found: list[bytes] = []
    hit = _search(pattern, answer, 0)
    offset = 0
    while offset + _HEADER.size <= len(answer):
        length, kind = _LENGTH_AND_KIND.unpack_from(answer, offset)
        if kind == _NLMSG_DONE:
            return found, True
        if kind == _NLMSG_ERROR or length < _HEADER.size:
            raise KernelError("list routes", -struct.unpack_from("=i", answer, offset + _HEADER.size)[0])
        if hit < offset:
            hit = _search(pattern, answer, offset)
        if hit < offset + length or not answer[offset + _DST_LEN_AT]:
            found.append(answer[offset : offset + length])
        offset += (length + 3) & ~3
    return found, False


def _search(pattern: re.Pattern[bytes] | None, answer: bytes, start: int) -> int:
    match = pattern.search(answer, start) if pattern is not None else None
    return match.start() if match is not None else len(answer)


def _paths(data: bytes) -> Iterator[int]:
    offset = 0
    while offset + _PATH.size <= len(data):
        length, _, _, ifindex = _PATH.unpack_from(data, offset)
        yield ifindex
        if length < _PATH.size:
            return
        offset += (length + 3) & ~3


def _is_link_local(route: Route) -> bool:
    return route.family == _AF_INET6 and len(data := route.get(_RTA_DST)) == 16 and ip_address(data).is_link_local


def _words(kind: int, data: bytes) -> str:
    """Return a known attribute in words, and any other attribute in hexadecimal. Routes that differ in any attribute
    then also differ in their text."""
    if kind in _RTA_ADDRESSES and len(data) in {4, 16}:
        return f"{_RTA_ADDRESSES[kind]} {_address(data)}"
    if kind == _RTA_VIA and len(data) in {6, 18}:
        return f"via {_address(data[2:])}"
    if kind in _RTA_NUMBERS and len(data) == 4:
        return f"{_RTA_NUMBERS[kind]} {struct.unpack('=I', data)[0]}"
    return f"attribute-{kind} {data.hex()}"


def _address(data: bytes) -> str:
    return str(ip_address(data)) if len(data) in {4, 16} else data.hex()
