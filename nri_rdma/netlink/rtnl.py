"""rtnetlink messages, between pyroute2's loose dictionaries and our types.

pyroute2 swallows misspelt keyword arguments and returns what it likes, so nothing outside this package sees it.
Reads go through pyroute2, but those of routes (netlink/routes); what is captured is sent again by netlink/replay.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any  # Any: pyroute2's messages are untyped dictionaries

from nri_rdma.model.link import Captured, LinkState
from nri_rdma.netlink.lean import IPRoute, NetlinkError
from nri_rdma.netlink.replay import attributes, link_settings

Message = Any  # a pyroute2 nlmsg

_IFF_UP = 0x1
_AF_INET6 = 10
_IFA_F_TEMPORARY = 0x01  # of IPv6; the same bit says "secondary" in IPv4
_IFA_PROTO = 11  # Linux 5.18
_IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA, _IFAPROT_KERNEL_LL = 1, 2, 3
_NUD_PERMANENT = 0x80
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


def captured_neighbour(message: Message) -> Captured | None:
    """A permanent neighbour; None for one that the kernel learned."""
    if not message["state"] & _NUD_PERMANENT:
        return None
    text = (
        f"neighbour {message.get_attr('NDA_DST')} lladdr {message.get_attr('NDA_LLADDR')} "
        f"flags {message['flags']:#x} type {message['ndm_type']}"
    )
    return Captured(text=text, raw=_raw(message), kernel_made=False)


def own_address(message: Message) -> bytes:
    """The address that an address message is about, as it stands on the wire."""
    return ip_address(message.get_attr("IFA_LOCAL") or message.get_attr("IFA_ADDRESS")).packed


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
    "link_state",
    "own_address",
]
