"""rtnetlink messages, between pyroute2's loose dictionaries and our types.

pyroute2 swallows misspelt keyword arguments and returns what it likes, so nothing outside this package sees it.
Reads go through pyroute2; what is captured is sent again by netlink/replay.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any  # Any: pyroute2's messages are untyped dictionaries

from nri_rdma.model.link import Captured, LinkState
from nri_rdma.netlink.lean import IPRoute, NetlinkError
from nri_rdma.netlink.replay import RTA_CACHEINFO, RTA_EXPIRES, attributes, link_settings

Message = Any  # a pyroute2 nlmsg

_IFF_UP = 0x1
_AF_INET6 = 10
_IFA_F_TEMPORARY = 0x01  # of IPv6; the same bit says "secondary" in IPv4
_IFA_PROTO = 11  # Linux 5.18
_IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA, _IFAPROT_KERNEL_LL = 1, 2, 3
_RTPROT_KERNEL = 2
_RTN_UNICAST = 1
_RT_TABLE_LOCAL = 255
_NUD_PERMANENT = 0x80
_RTA_DST, _RTA_SRC, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY, _RTA_PREFSRC, _RTA_TABLE, _RTA_NH_ID = (
    1,
    2,
    4,
    5,
    6,
    7,
    15,
    30,
)
_RTA_ADDRESSES = {_RTA_SRC: "from", _RTA_GATEWAY: "via", _RTA_PREFSRC: "src"}
_RTA_NUMBERS = {_RTA_PRIORITY: "metric", _RTA_TABLE: "table"}
_RTM_F_CLONED = 0x200
_RTNH_F_ONLINK = 4
_VOLATILE_ADDRESS_FLAGS = 0x40 | 0x08 | 0x20 | 0x04  # tentative, dadfailed, deprecated, optimistic


def link_state(message: Message) -> LinkState:
    """A link without its addresses and routes."""
    info = message.get_attr("IFLA_LINKINFO")
    properties = message.get_attr("IFLA_PROP_LIST")
    parent = message.get_attr("IFLA_PARENT_DEV_NAME") or ""
    bus = message.get_attr("IFLA_PARENT_DEV_BUS_NAME") or ""
    kind = (info.get_attr("IFLA_INFO_KIND") or "") if info else ""
    return LinkState(
        ifindex=message["index"],
        name=message.get_attr("IFLA_IFNAME"),
        kind=kind,
        parent=f"{bus}/{parent}" if parent else "",
        permanent_mac=message.get_attr("IFLA_PERM_ADDRESS") or "",
        mac=message.get_attr("IFLA_ADDRESS") or "",
        mtu=message.get_attr("IFLA_MTU") or 0,
        txqlen=message.get_attr("IFLA_TXQLEN") or 0,
        alias=message.get_attr("IFLA_IFALIAS") or "",
        alt_names=tuple(properties.get_attrs("IFLA_ALT_IFNAME")) if properties else (),
        up=bool(message["flags"] & _IFF_UP),
        master=message.get_attr("IFLA_MASTER") or 0,
        lower=_lower(message, kind),
        xdp=_has_xdp(message),
        settings=link_settings(_raw(message)),
    )


def _lower(message: Message, kind: str) -> int:
    """IFLA_LINK of a child (vlan, macvlan, ...) in the same namespace; a veth's is its peer, not its parent."""
    if kind == "veth" or message.get_attr("IFLA_LINK_NETNSID") is not None:
        return 0
    lower = message.get_attr("IFLA_LINK") or 0
    return int(lower) if lower != message["index"] else 0


def _has_xdp(message: Message) -> bool:
    xdp = message.get_attr("IFLA_XDP")
    return bool(xdp and xdp.get_attr("IFLA_XDP_ATTACHED"))


def captured_address(message: Message) -> Captured | None:
    """An address; None for one that lives by itself only (an IPv6 temporary address)."""
    flags = message.get_attr("IFA_FLAGS") or message["flags"]
    if message["family"] == _AF_INET6 and flags & _IFA_F_TEMPORARY:
        return None
    local = message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")
    parts = [
        f"{local}/{message['prefixlen']}",
        f"peer {message.get_attr('IFA_ADDRESS')}",
        f"scope {message['scope']}",
        f"flags {flags & ~_VOLATILE_ADDRESS_FLAGS:#x}",
    ]
    for attribute in ("IFA_BROADCAST", "IFA_LABEL", "IFA_RT_PRIORITY", "IFA_PROTO"):
        value = _scalar(message, attribute)
        if value:
            parts.append(f"{attribute[4:].lower()} {value}")
    return Captured(
        text=" ".join(parts),
        raw=_raw(message),
        kernel_made=_address_protocol(message) in {_IFAPROT_KERNEL_LL, _IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA},
    )


def captured_route(message: Message) -> Captured | None:
    """A route; None for a cached clone, and for what the kernel keeps in the table `local` for its addresses."""
    if message["flags"] & _RTM_F_CLONED:
        return None
    if message["proto"] == _RTPROT_KERNEL and message["table"] == _RT_TABLE_LOCAL:
        return None
    text = (
        f"{_destination(message)} type {message['type']} proto {message['proto']} scope {message['scope']} "
        f"tos {message['tos']}{' onlink' if message['flags'] & _RTNH_F_ONLINK else ''}"
    )
    raw = _raw(message)
    for kind, data in attributes(raw[28:]):
        if kind not in {_RTA_DST, _RTA_OIF, RTA_CACHEINFO, RTA_EXPIRES}:
            text += f" {_route_attribute(kind, data)}"
    return Captured(text=text, raw=raw, kernel_made=message["proto"] == _RTPROT_KERNEL and _is_link_local(message))


def _destination(message: Message) -> str:
    default = "::" if message["family"] == _AF_INET6 else "0.0.0.0"
    return f"{message.get_attr('RTA_DST') or default}/{message['dst_len']}"


def _is_link_local(message: Message) -> bool:
    return message["family"] == _AF_INET6 and ip_address(message.get_attr("RTA_DST") or "::").is_link_local


def _route_attribute(kind: int, data: bytes) -> str:
    """In words where we know it, else whole: two routes that differ anywhere differ in their text."""
    if kind in _RTA_ADDRESSES and len(data) in {4, 16}:
        return f"{_RTA_ADDRESSES[kind]} {ip_address(data)}"
    if kind in _RTA_NUMBERS and len(data) == 4:
        return f"{_RTA_NUMBERS[kind]} {struct.unpack('=I', data)[0]}"
    return f"attribute-{kind} {data.hex()}"


def captured_neighbour(message: Message) -> Captured | None:
    """A permanent neighbour; None for one that the kernel learned."""
    if not message["state"] & _NUD_PERMANENT:
        return None
    text = (
        f"neighbour {message.get_attr('NDA_DST')} lladdr {message.get_attr('NDA_LLADDR')} "
        f"flags {message['flags']:#x} type {message['ndm_type']}"
    )
    return Captured(text=text, raw=_raw(message), kernel_made=False)


def route_link(message: Message) -> int:
    """The ifindex that a route leads to; 0 when it leads to none, or to several."""
    return int(message.get_attr("RTA_OIF") or 0)


def default_route_targets(message: Message) -> frozenset[int]:
    """The ifindexes that a default route leads to, all paths of it; empty for other routes."""
    if message["dst_len"] or message.get_attr("RTA_DST") or message["type"] != _RTN_UNICAST:
        return frozenset()
    paths = message.get_attr("RTA_MULTIPATH") or ()
    return frozenset({int(path["oif"]) for path in paths} | {route_link(message)}) - {0}


def unreturnable(ifindex: int, addresses: Iterable[Message], routes: Iterable[Message]) -> tuple[str, ...]:
    """What a host would lose with this link and could not have back: each goes on after the link's name."""
    own = {address.get_attr("IFA_LOCAL") or address.get_attr("IFA_ADDRESS") for address in addresses}
    found: list[str] = []
    for route in routes:
        where = _destination(route)
        if any(path["oif"] == ifindex for path in route.get_attr("RTA_MULTIPATH") or ()):
            found.append(f"is a path of the multipath route {where}")
        elif route_link(route) == ifindex:
            if any(kind == _RTA_NH_ID for kind, _ in attributes(_raw(route)[28:])):
                found.append(f"carries the route {where} through a next hop object")
        elif route["table"] != _RT_TABLE_LOCAL and route.get_attr("RTA_PREFSRC") in own:
            found.append(f"has the source address of the route {where} through another link")
    return tuple(sorted(set(found)))


def _raw(message: Message) -> bytes:
    start = message.offset
    return bytes(message.data[start : start + message["header"]["length"]])


def _scalar(message: Message, attribute: str) -> str:
    if attribute == "IFA_PROTO":
        return str(_address_protocol(message) or "")
    value = message.get_attr(attribute)
    return "" if value is None else str(value)


def _address_protocol(message: Message) -> int:
    """IFA_PROTO (11, Linux 5.18), which pyroute2 0.9 does not decode everywhere."""
    for kind, data in attributes(_raw(message)[24:]):
        if kind == _IFA_PROTO and data:
            return data[0]
    return 0


__all__ = [
    "IPRoute",
    "Message",
    "NetlinkError",
    "captured_address",
    "captured_neighbour",
    "captured_route",
    "default_route_targets",
    "link_state",
    "route_link",
    "unreturnable",
]
