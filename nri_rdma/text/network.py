"""The grammar of a netdev's network configuration in a request: routes, routing rules, neighbours, VRF and ethtool. The
keys have the names of DRANET's JSON; further keys are nri-rdma's own.

A value that the kernel would refuse, or would understand differently from the author, is refused here. All errors of a
request are reported at once. In a request for several devices, a route belongs to the netdev whose addresses reach its
gateway (`nri_rdma.model.reach`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any  # Any: fields of a value

from nri_rdma.errors import RequestError
from nri_rdma.model.network import (
    MAIN_TABLE,
    SCOPE_LINK,
    SCOPE_UNIVERSE,
    EthtoolConfig,
    NeighbourConfig,
    NextHop,
    RouteConfig,
    RouteType,
    RoutingRule,
    VrfConfig,
)
from nri_rdma.model.reach import Reach
from nri_rdma.model.request import DeviceRequest
from nri_rdma.text.forms import FLAG, Form, Key, number, read_keys, schema_of, table, up_to, word_of
from nri_rdma.text.links import ANY_NETDEV, HOST_ADDRESS, IPV6, IPV6_MTU, MAC, NETDEV, NETWORK
from nri_rdma.text.nodes import Node, shown
from nri_rdma.text.reading import MappingErrors, core_value
from nri_rdma.text.refusals import quoted, refuse_all, refused
from nri_rdma.text.unsupported import unknown_request_key

MAX_ROUTES, MAX_RULES, MAX_NEIGHBOURS, MAX_HOPS = 64, 64, 64, 16
"""The most routes, rules and neighbours of one request, and gateways of one route. The start of the pod waits until the
kernel has set them all."""
MAX_FLAGS = 64
MAX_OFFLOAD_SIZE = 8 * 65535
"""The most for GSO_MAX_SIZE and GRO_MAX_SIZE (include/linux/netdevice.h); a driver may accept less."""
_FLAG_NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9_. :+]{0,30}")
"""Matches the name of an ethtool flag; ETH_GSTRING_LEN is 32 including the NUL."""
_LOCAL_TABLE = 255
_U32 = 2**32 - 1
_VERSIONS = {4: "IPv4", 6: "IPv6"}


# Routes


def _scope(node: Node, where: str) -> int:
    value = core_value(node)
    if isinstance(value, bool) or value not in {SCOPE_UNIVERSE, SCOPE_LINK}:
        what = f"{shown(node)} is not allowed"
        raise refused(where, what, "write 0 for a network behind a gateway, or 253 for a network on the link itself")
    return int(value)


def _table(node: Node, where: str) -> int:
    """Read the number of a routing table. 0 means the main table, also in the kernel. Raises RequestError for 255, the
    table of the pod's own addresses, and for values that are no table's number."""
    value: int = _TABLE_NUMBER.read(node, where)
    if value == _LOCAL_TABLE:
        what = "255 is the table of the pod's own addresses, which the kernel keeps"
        raise refused(where, what, "leave table out for the main table, or write another number")
    return value or MAIN_TABLE


def _misfits_of_route(fields: Mapping[str, Any], where: str) -> Iterator[RequestError]:
    """Yield an error for each contradiction between the keys of a route."""
    version = fields["destination"].version
    for key in ("gateway", "source"):
        if key in fields and fields[key].version != version:
            yield _other_version(f"{where}.{key}", key, fields[key].version, version)
    for index, hop in enumerate(fields.get("multipath", ())):
        if hop.gateway.version != version:
            yield _other_version(f"{where}.multipath[{index}].gateway", "gateway", hop.gateway.version, version)
    if fields.get("type", RouteType.UNICAST) is not RouteType.UNICAST:
        for name in _OF_UNICAST:
            if name in fields:
                what = f"a route of type {fields['type']} forwards no packets, so that it cannot have {name}"
                yield refused(f"{where}.{name}", what, "leave it out, or leave type out")
        return
    yield from _misfits_of_ways(fields, where)
    if version == IPV6 and 0 < fields.get("mtu", 0) < IPV6_MTU:
        yield refused(f"{where}.mtu", f"{fields['mtu']} is too small for IPv6", f"write {IPV6_MTU} or more")


def _misfits_of_ways(fields: Mapping[str, Any], where: str) -> Iterator[RequestError]:
    """Yield an error for each contradiction between the keys that say where a route leads (gateway, multipath, scope,
    onlink)."""
    is_behind = "gateway" in fields or "multipath" in fields
    scope = fields.get("scope", SCOPE_UNIVERSE)
    if "gateway" in fields and "multipath" in fields:
        yield refused(f"{where}.gateway", "multipath has the gateways already", "leave one of both out")
    if not is_behind and scope == SCOPE_UNIVERSE:
        hint = "write the gateway's address, or scope: 253 for a network on the link itself"
        yield refused(where, "gateway is missing", hint)
    if is_behind and scope == SCOPE_LINK:
        what = "a route with scope 253 is for a network on the link itself and has no gateway"
        yield refused(f"{where}.scope", what, "leave scope or the gateway out")
    if fields.get("onlink") and not is_behind:
        yield refused(f"{where}.onlink", "onlink needs a gateway, and there is none", "leave it out")


def _other_version(where: str, key: str, version: int, wanted: int) -> RequestError:
    what = f"{key} is {_VERSIONS[version]}, and the destination {_VERSIONS[wanted]}"
    return refused(where, what, "write addresses of one IP version in a route, and a route for each version")


_OF_UNICAST = ("gateway", "source", "scope", "onlink", "mtu", "advmss", "multipath")


# Rules


def _rule(node: Node, where: str) -> RoutingRule:
    fields = {"priority": 0, **read_keys(node, where, RULE_KEYS)}
    refuse_all(_misfits_of_rule(fields, where))
    networks = [fields[key] for key in ("source", "destination") if key in fields]
    return RoutingRule(version=networks[0].version if networks else 0, **fields)


def _misfits_of_rule(fields: Mapping[str, Any], where: str) -> Iterator[RequestError]:
    """Yield an error for each contradiction between the keys of a routing rule."""
    source, destination = fields.get("source"), fields.get("destination")
    if source is not None and destination is not None and source.version != destination.version:
        what = f"source is {_VERSIONS[source.version]}, and destination {_VERSIONS[destination.version]}"
        yield refused(
            f"{where}.source", what, "write networks of one IP version in a rule, and a rule for each version"
        )
    if "fwmask" in fields and "fwmark" not in fields:
        yield refused(f"{where}.fwmask", "fwmask is about fwmark, which is missing", "write fwmark, or leave it out")
    if fields.get("invert") and not fields.keys() & _CONDITIONS:
        yield refused(f"{where}.invert", "there is no condition to invert", "write a condition, or leave it out")


_CONDITIONS = frozenset({"source", "destination", "fwmark", "iif", "oif"})


# Neighbours


def _each_once(form: Form, most: int, what: str) -> Form:
    """Return a Form (reader and JSON Schema) for a list of at most `most` entries, each with a different destination.
    `form` is the Form of one entry. `what` is the word for an entry in errors."""
    several = up_to(most, form)

    def read(node: Node, where: str) -> tuple[NeighbourConfig, ...]:
        items: tuple[NeighbourConfig, ...] = several.read(node, where)
        first: dict[object, int] = {}
        for index, item in enumerate(items):
            if item.destination in first:
                told = f"{item.destination} is a {what} already, at [{first[item.destination]}]"
                raise refused(f"{where}[{index}].destination", told, "name it once")
            first[item.destination] = index
        return items

    return Form(read, several.schema, several.keys, several.fills)


# The netdev


def _arp_ignore(node: Node, where: str) -> int:
    value = core_value(node)
    if isinstance(value, bool) or value not in _ARP_IGNORE:
        raise refused(where, f"{shown(node)} is not allowed", "write 0, 1, 2, 3 or 8")
    return int(value)


_ARP_IGNORE = (0, 1, 2, 3, 8)
"""The values of arp_ignore (Documentation/networking/ip-sysctl.rst); 4 to 7 are reserved."""


def _vrf(node: Node, where: str) -> VrfConfig:
    fields = read_keys(node, where, VRF_KEYS)
    if fields.get("table") in _SHARED_TABLES:
        what = f"table {fields['table']} is the namespace's own"
        raise refused(f"{where}.table", what, "write another number, or leave table out")
    return VrfConfig(name=fields["name"], table=fields.get("table", _default_table(fields["name"])))


_SHARED_TABLES = frozenset({253, MAIN_TABLE, _LOCAL_TABLE})


def _default_table(name: str) -> int:
    """Return the routing table that DRANET gives a VRF of this name: 1000 plus (FNV-1a of the name modulo 1000)."""
    digest = 0x811C9DC5
    for byte in name.encode():
        digest = (digest ^ byte) * 0x01000193 & _U32
    return 1000 + digest % 1000


def _misfits_of_ethtool(fields: Mapping[str, Any], where: str) -> Iterator[RequestError]:
    if not fields:
        yield refused(where, "there is nothing in it", "write {features: {NAME: true}}, or leave ethtool out")


def _flags(node: Node, where: str) -> tuple[tuple[str, bool], ...]:
    """Read a mapping of an ethtool flag's name to true or false. Raises RequestError if it is empty, too long, or
    wrong."""
    if not isinstance(node, dict) or not node:
        raise refused(where, f"{shown(node)} is no table of names", "write {NAME: true}, or leave it out")
    if len(node) > MAX_FLAGS:
        raise refused(where, f"there are {len(node)} names in it", f"write at most {MAX_FLAGS}")
    refuse_all(
        refused(where, f"{quoted(name)} is not allowed", "write a name as ethtool shows it", name)
        for name in node
        if not _FLAG_NAME.fullmatch(name)
    )
    return tuple((name, FLAG.read(value, f"{where}.{name}")) for name, value in node.items())


# The whole request


def network_misfits(request: DeviceRequest) -> Iterator[RequestError]:
    """Yield an error for each route, rule or neighbour of a request that contradicts the request's other keys."""
    yield from _misfits_of_interface(request)
    netdevs, reach = request.interface.addresses, Reach(request.interface.addresses)
    is_one = request.count == 1
    for index, route in enumerate(request.routes):
        where = f"{request.where}.routes[{index}]"
        if netdevs and route.source is not None and not reach.having(route.source):
            what = f"{route.source} is no address of the interface"
            yield refused(f"{where}.source", what, "write one of interface.addresses, or leave source out")
        elif not is_one and route.is_over_netdev and reach.netdev_of_route(route) is None:
            yield _of_no_netdev(route, where, len(netdevs), reach)
        elif is_one and netdevs and not route.onlink:
            yield from _unreached(request, route, where, reach)
    for index, neighbour in enumerate(request.neighbours):
        where = f"{request.where}.neighbors[{index}].destination"
        if not is_one and reach.netdev_of_neighbour(neighbour.destination) is None:
            fitting = reach.reaching(neighbour.destination)
            yield _ambiguous(where, f"neighbour {neighbour.destination}", fitting, len(netdevs))


def _misfits_of_interface(request: DeviceRequest) -> Iterator[RequestError]:
    interface, where = request.interface, request.where
    if interface.vrf is not None and request.rules:
        what = "a VRF has a rule of its own, which other rules would bypass"
        yield refused(f"{where}.rules", what, "leave rules out, or interface.vrf")
    for index, route in enumerate(request.routes):
        if interface.vrf is not None and route.table not in {MAIN_TABLE, interface.vrf.table}:
            what = f"the netdev is in VRF {interface.vrf.name}, whose table is {interface.vrf.table}"
            yield refused(f"{where}.routes[{index}].table", what, "leave table out")
        if interface.enable_ipv6 is False and route.destination.version == IPV6:
            yield _without_ipv6(f"{where}.routes[{index}].destination", str(route.destination))
    if interface.enable_ipv6 is not False:
        return
    for own in interface.addresses:
        for address in own:
            if address.version == IPV6:
                yield _without_ipv6(f"{where}.interface.addresses", str(address))
    for index, neighbour in enumerate(request.neighbours):
        if neighbour.destination.version == IPV6:
            yield _without_ipv6(f"{where}.neighbors[{index}].destination", str(neighbour.destination))


def _without_ipv6(where: str, what: str) -> RequestError:
    told = f"enableIPv6 is false, so that the netdev cannot have {what}"
    return refused(where, told, "write enableIPv6: true, or leave what is IPv6 out")


def _unreached(request: DeviceRequest, route: RouteConfig, where: str, reach: Reach) -> Iterator[RequestError]:
    """Yield an error for each gateway of `route` that the pod could not reach. A gateway is reached if it is a
    link-local address, in a network of the netdev's addresses, or in a network that another route puts on the link."""
    on_link = [it.destination for it in request.routes if it.is_over_netdev and not it.gateways]
    for gateway in route.gateways:
        is_near = any(gateway in it for it in on_link)
        if not (is_near or gateway.is_link_local or reach.reaching(gateway)):
            what = f"the gateway {gateway} is in none of the interface's networks"
            hint = "correct the addresses or the gateway, add a route to it with scope: 253, or write onlink: true"
            yield refused(f"{where}.gateway" if route.gateway is not None else f"{where}.multipath", what, hint)


def _of_no_netdev(route: RouteConfig, where: str, netdevs: int, reach: Reach) -> RequestError:
    """Return the error for a route of a request with several devices, if none or several of the devices reach its
    gateways. `netdevs` is the number of devices with addresses in the request."""
    positions = [reach.reaching(gateway) for gateway in route.gateways]
    fitting = frozenset.intersection(*positions) if positions else frozenset(range(netdevs))
    return _ambiguous(where, f"route {route}", fitting, netdevs)


def _ambiguous(where: str, what: str, fitting: frozenset[int], netdevs: int) -> RequestError:
    why = f"{len(fitting)} of its devices reach it" if fitting else "no address of its devices reaches it"
    if not netdevs:
        why = "the request has several devices and no interface.addresses to tell them apart (those of the host do not)"
    return refused(
        where,
        f"it is not clear which device of the request the {what} is for: {why}",
        "write a request for each device, or interface.addresses with a list per device, one of which reaches it",
    )


# The keys

_TABLE_NUMBER = number(0, _U32)
_HOP = table(
    NextHop,
    (
        Key(
            "gateway",
            "gateway",
            HOST_ADDRESS,
            "Address of the gateway",
            default="needed",
            required="write {gateway: ADDRESS}",
        ),
        Key("weight", "weight", number(1, 256), "Share of the flows that go this way"),
    ),
)


ROUTE_KEYS = (
    Key(
        "destination",
        "destination",
        NETWORK,
        "Network that the route leads to",
        default="needed",
        required="write a network such as 10.0.0.0/8, or 0.0.0.0/0 for all",
    ),
    Key(
        "gateway",
        "gateway",
        HOST_ADDRESS,
        "Address of the next router; needed unless `scope` is 253",
        default="none",
    ),
    Key("source", "source", HOST_ADDRESS, "Address of the netdev that packets leave with", default="the kernel's"),
    Key(
        "scope",
        "scope",
        Form(_scope, {"enum": [SCOPE_UNIVERSE, SCOPE_LINK]}),
        "0: behind a gateway; 253: on the link itself. Routes with 253 are added first",
    ),
    Key(
        "table",
        "table",
        Form(_table, _TABLE_NUMBER.schema),
        "Table of routes; 0 is the main one. With `interface.vrf` it is the table of the VRF",
        default="`254`, the main table",
    ),
    Key("metric", "metric", number(0, _U32), "Of two routes to the same network the lower one counts"),
    Key("onlink", "onlink", FLAG, "The gateway is on the link, though no network of the netdev has it"),
    Key("mtu", "mtu", number(68, 65535), "MTU of the route", default="the netdev's", unit="bytes"),
    Key("advmss", "advmss", number(1, 65535), "Segment size that TCP announces", default="by the MTU", unit="bytes"),
    Key("type", "type", word_of(RouteType), "Another type than `unicast` leads nowhere: packets are refused"),
    Key(
        "multipath",
        "multipath",
        up_to(MAX_HOPS, _HOP),
        "Several gateways behind the same netdev, in place of `gateway`",
        default="none",
    ),
)
RULE_KEYS = (
    Key("priority", "priority", number(0, 32767), "Rules are asked in the order of this number", default="`0`"),
    Key("source", "source", NETWORK, "Where packets come from", default="anywhere"),
    Key("destination", "destination", NETWORK, "Where packets go", default="anywhere"),
    Key(
        "table",
        "table",
        number(1, _U32),
        "Table of routes that is asked",
        default="needed",
        required="write the number of the table that is asked",
    ),
    Key("fwmark", "fwmark", number(0, _U32), "Mark of packets", default="any"),
    Key("fwmask", "fwmask", number(1, _U32), "Bits of the mark that count", default="all"),
    Key("iif", "iif", ANY_NETDEV, "Netdev of the pod that packets arrive at; `lo` for the pod's own", default="any"),
    Key("oif", "oif", ANY_NETDEV, "Netdev of the pod that a socket is bound to", default="any"),
    Key("invert", "invert", FLAG, "For packets that do not meet the conditions"),
    Key(
        "suppressPrefixLength",
        "suppress_prefix_length",
        number(0, 128),
        "Skip routes of the table whose prefix is not longer than this: 0 skips its default routes",
        default="none",
    ),
)
NEIGHBOUR_KEYS = (
    Key(
        "destination",
        "destination",
        HOST_ADDRESS,
        "Address of the neighbour",
        default="needed",
        required="write destination, too",
    ),
    Key("hardwareAddr", "mac", MAC, "MAC of the neighbour", default="needed", required="write hardwareAddr, too"),
)
VRF_KEYS = (
    Key("name", "name", NETDEV, "Name of the VRF in the pod", default="needed", required="write {name: NAME}"),
    Key(
        "table",
        "table",
        number(1, _U32),
        "Table of its routes; the namespace's own (253 to 255) are refused",
        default="1000 to 1999, by the name",
    ),
)
_FLAGS = Form(
    _flags,
    {
        "type": "object",
        "minProperties": 1,
        "maxProperties": MAX_FLAGS,
        "propertyNames": {"pattern": f"^(?:{_FLAG_NAME.pattern})$"},
        "additionalProperties": FLAG.schema,
    },
)
ETHTOOL_KEYS = (
    Key(
        "features",
        "features",
        _FLAGS,
        "Features by the names of `ethtool -k`, such as `tx-tcp-segmentation` or `tcp-segmentation-offload`: on or off",
        default="none",
    ),
    Key(
        "privateFlags",
        "private_flags",
        _FLAGS,
        "Private flags of the netdev's driver, by the names of `ethtool --show-priv-flags`: on or off",
        default="none",
    ),
)
ARP_IGNORE = Form(_arp_ignore, {"enum": list(_ARP_IGNORE)})
OFFLOAD_SIZE = number(1, MAX_OFFLOAD_SIZE)
VRF = Form(_vrf, schema_of(VRF_KEYS), VRF_KEYS, VrfConfig)
_ETHTOOL = table(EthtoolConfig, ETHTOOL_KEYS, MappingErrors(unknown_request_key), _misfits_of_ethtool)
ETHTOOL = replace(_ETHTOOL, schema={**_ETHTOOL.schema, "minProperties": 1})
ROUTES = up_to(MAX_ROUTES, table(RouteConfig, ROUTE_KEYS, misfits=_misfits_of_route))
RULES = up_to(MAX_RULES, Form(_rule, schema_of(RULE_KEYS), RULE_KEYS, RoutingRule))
NEIGHBOURS = _each_once(table(NeighbourConfig, NEIGHBOUR_KEYS), MAX_NEIGHBOURS, "neighbour")
