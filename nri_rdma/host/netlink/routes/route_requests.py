"""Encodes the routes, rules and neighbours that a pod's request asks for as rtnetlink requests.

The routes and rules carry a protocol number of nri-rdma's own, which `ip route` and `ip rule` show. It ensures that
only entries of nri-rdma are removed from a pod's namespace.
"""

from __future__ import annotations

import errno
import struct
from typing import Final

from nri_rdma.attach.ops import (
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    RemoveRejectRoute,
    RemoveRule,
)
from nri_rdma.host.netlink.sockets.route_socket import Request
from nri_rdma.model.network import IpAddress, IpNetwork, RouteConfig, RouteType, RoutingRule
from nri_rdma.wire.netlink import CREATE, EXCL, NESTED, REPLACE, encode_attribute, encode_u32

PROTOCOL: Final = 114
"""The protocol number (origin) of nri-rdma's routes and rules. It has no name in iproute2's rt_protos."""
_NEWROUTE, _DELROUTE, _NEWNEIGH, _NEWRULE, _DELRULE = 24, 25, 28, 32, 33  # RTM_*, include/uapi/linux/rtnetlink.h
_RTMSG = struct.Struct("=BBBBBBBBI")
_RTNEXTHOP = struct.Struct("=HBBi")
_NDMSG = struct.Struct("=BxxxiHBB")
_RULE = struct.Struct("=BBBBBBBBI")  # struct fib_rule_hdr
_U8 = struct.Struct("=B")
_AF = {4: 2, 6: 10}
_TABLE_IN_HEADER = 255
_RT_TABLE_COMPAT = 252
_TYPES = {RouteType.UNICAST: 1, RouteType.BLACKHOLE: 6, RouteType.UNREACHABLE: 7, RouteType.PROHIBIT: 8}
_ONLINK = 4  # RTNH_F_ONLINK
_DST, _OIF, _GATEWAY, _PRIORITY, _PREFSRC, _METRICS, _MULTIPATH, _TABLE = 1, 4, 5, 6, 7, 8, 9, 15  # RTA_*
_AX_MTU, _AX_ADVMSS = 2, 8  # RTAX_*
_NDA_DST, _NDA_LLADDR, _PERMANENT = 1, 2, 0x80
_TO_TABLE, _INVERT = 1, 0x2  # FR_ACT_TO_TBL, FIB_RULE_INVERT, include/uapi/linux/fib_rules.h
_FRA_DST, _FRA_SRC, _FRA_IIFNAME, _FRA_PRIORITY, _FRA_FWMARK = 1, 2, 3, 6, 10
_FRA_SUPPRESS_PREFIXLEN, _FRA_TABLE, _FRA_FWMASK, _FRA_OIFNAME, _FRA_PROTOCOL = 14, 15, 16, 17, 21


def add_route_request(ifindex: int, addition: AddRoute) -> Request:
    """Return the request that adds a route over a link. The kernel answers EEXIST if the namespace already has a route
    with this destination, table and metric, even over another link."""
    route = addition.route
    body = _route(route) + _paths(route, ifindex)
    return Request(kind=_NEWROUTE, flags=CREATE | EXCL, body=body, operation=addition.describe())


def add_reject_request(addition: AddRejectRoute) -> Request:
    """Return the request that adds a route which rejects packets (blackhole, unreachable, prohibit)."""
    return Request(kind=_NEWROUTE, flags=CREATE | EXCL, body=_route(addition.route), operation=addition.describe())


def remove_reject_request(removal: RemoveRejectRoute) -> Request:
    """Return the request that removes a route which rejects packets. If the route is missing, the request counts as
    successful."""
    return Request(
        kind=_DELROUTE,
        body=_route(removal.route),
        operation=removal.describe(),
        tolerate=frozenset({errno.ESRCH}),
    )


def add_neighbour_request(ifindex: int, addition: AddNeighbour) -> Request:
    """Return the request that adds a permanent neighbour. It replaces an entry that the kernel may have learned."""
    neighbour = addition.neighbour
    mac = bytes.fromhex(neighbour.mac.replace(":", ""))
    return Request(
        kind=_NEWNEIGH,
        flags=CREATE | REPLACE,
        body=_NDMSG.pack(_AF[neighbour.destination.version], ifindex, _PERMANENT, 0, 0)
        + encode_attribute(_NDA_DST, neighbour.destination.packed)
        + encode_attribute(_NDA_LLADDR, mac),
        operation=addition.describe(),
    )


def add_rule_request(addition: AddRule) -> Request:
    """Return the request that adds a rule to the namespace. The kernel answers EEXIST if the rule exists."""
    return Request(kind=_NEWRULE, flags=CREATE | EXCL, body=_rule(addition.rule), operation=addition.describe())


def remove_rule_request(removal: RemoveRule) -> Request:
    """Return the request that removes a rule that nri-rdma added. If the rule is missing, the request counts as
    successful."""
    return Request(
        kind=_DELRULE,
        body=_rule(removal.rule),
        operation=removal.describe(),
        tolerate=frozenset({errno.ENOENT}),
    )


def _route(route: RouteConfig) -> bytes:
    """Return struct rtmsg and the route's attributes, except those of its links and gateways."""
    destination = route.destination
    flags = _ONLINK if route.onlink and not route.multipath else 0
    body = _RTMSG.pack(
        _AF[destination.version],
        destination.prefixlen,
        0,
        0,
        _table_byte(route.table),
        PROTOCOL,
        route.scope,
        _TYPES[route.type],
        flags,
    )
    body += _network(_DST, destination) + encode_u32(_TABLE, route.table)
    if route.metric:
        body += encode_u32(_PRIORITY, route.metric)
    if route.source is not None:
        body += encode_attribute(_PREFSRC, route.source.packed)
    metrics = encode_u32(_AX_MTU, route.mtu) if route.mtu else b""
    metrics += encode_u32(_AX_ADVMSS, route.advmss) if route.advmss else b""
    return body + (encode_attribute(_METRICS | NESTED, metrics) if metrics else b"")


def _paths(route: RouteConfig, ifindex: int) -> bytes:
    """Return the attributes for a route's link and gateway, or for the paths of a multipath route."""
    if not route.multipath:
        gateway = encode_attribute(_GATEWAY, route.gateway.packed) if route.gateway is not None else b""
        return encode_u32(_OIF, ifindex) + gateway
    flags = _ONLINK if route.onlink else 0
    hops = b""
    for hop in route.multipath:
        gateway = encode_attribute(_GATEWAY, hop.gateway.packed)
        hops += _RTNEXTHOP.pack(_RTNEXTHOP.size + len(gateway), flags, hop.weight - 1, ifindex) + gateway
    return encode_attribute(_MULTIPATH, hops)


def _rule(rule: RoutingRule) -> bytes:
    """Return struct fib_rule_hdr and the attributes of a rule. Requests that add a rule and requests that remove it
    both use them."""
    source, destination = rule.source, rule.destination
    body = _RULE.pack(
        _AF[rule.version],
        destination.prefixlen if destination is not None else 0,
        source.prefixlen if source is not None else 0,
        0,
        _table_byte(rule.table),
        0,
        0,
        _TO_TABLE,
        _INVERT if rule.invert else 0,
    )
    body += encode_u32(_FRA_PRIORITY, rule.priority) + encode_u32(_FRA_TABLE, rule.table)
    body += encode_attribute(_FRA_PROTOCOL, _U8.pack(PROTOCOL))
    body += _network(_FRA_SRC, source) if source is not None else b""
    body += _network(_FRA_DST, destination) if destination is not None else b""
    if rule.fwmark is not None:
        body += encode_u32(_FRA_FWMARK, rule.fwmark)
    if rule.fwmask is not None:
        body += encode_u32(_FRA_FWMASK, rule.fwmask)
    if rule.iif:
        body += encode_attribute(_FRA_IIFNAME, rule.iif.encode() + b"\0")
    if rule.oif:
        body += encode_attribute(_FRA_OIFNAME, rule.oif.encode() + b"\0")
    if rule.suppress_prefix_length is not None:
        body += encode_u32(_FRA_SUPPRESS_PREFIXLEN, rule.suppress_prefix_length)
    return body


def _network(attribute: int, network: IpNetwork) -> bytes:
    """Return the netlink attribute `attribute` with a network as its value; b"" for the network of all addresses."""
    address: IpAddress = network.network_address
    return encode_attribute(attribute, address.packed) if network.prefixlen else b""


def _table_byte(table: int) -> int:
    return table if table <= _TABLE_IN_HEADER else _RT_TABLE_COMPAT
