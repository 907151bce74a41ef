"""rtnetlink messages, between pyroute2's loose dictionaries and our types.

pyroute2 swallows misspelt keyword arguments and returns what it likes, so nothing outside this package sees it.
Reads go through pyroute2; a captured message is sent again as the bytes the kernel told, on a plain socket, so that
attributes which neither pyroute2 nor we know survive.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from typing import Any  # Any: pyroute2's messages are untyped dictionaries

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from nri_rdma.attach.port import Captured, KernelError, LinkState

Message = Any  # a pyroute2 nlmsg

_RTM_NEWADDR, _RTM_NEWROUTE, _RTM_NEWNEIGH = 20, 24, 28  # each DEL is one more
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
_NLMSG_ERROR = 2
_HEADER = struct.Struct("=IHHII")
_IFF_UP = 0x1
_IFA_F_PERMANENT, _IFA_F_TEMPORARY = 0x80, 0x01
_IFA_CACHEINFO = 6
_IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA, _IFAPROT_KERNEL_LL = 1, 2, 3
_RTPROT_KERNEL = 2
_RTN_UNICAST = 1
_RT_TABLE_LOCAL = 255
_NUD_PERMANENT = 0x80
_NDA_CACHEINFO, _NDA_PROBES = 3, 4
_RTA_OIF, _RTA_CACHEINFO = 4, 12
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
    if flags & _IFA_F_TEMPORARY:
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
    attributes = [
        f"{name[4:].lower()} {value}"
        for name, value in message["attrs"]
        if name not in {"RTA_CACHEINFO", "RTA_OIF", "RTA_PREF", "UNKNOWN"}
    ]
    text = (
        f"family {message['family']} dst_len {message['dst_len']} tos {message['tos']} type {message['type']} "
        f"proto {message['proto']} scope {message['scope']} " + " ".join(attributes)
    )
    return Captured(text=text, raw=_raw(message), kernel_made=message["proto"] == _RTPROT_KERNEL)


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


class Replayer:
    """Sends captured messages again, from the namespace of the thread that made it."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._sequence = 0

    def __enter__(self) -> Replayer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def restore(self, thing: Captured, ifindex: int) -> None:
        """Add it; that it exists already is no error."""
        flags = _NLM_F_REQUEST | _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL
        self._send(thing, ifindex, flags, add=True, tolerate=errno.EEXIST)

    def remove(self, thing: Captured, ifindex: int) -> None:
        """Delete it; that it does not exist is no error."""
        tolerate = _ABSENT[_kind(thing)]
        self._send(thing, ifindex, _NLM_F_REQUEST | _NLM_F_ACK, add=False, tolerate=tolerate)

    def _send(self, thing: Captured, ifindex: int, flags: int, *, add: bool, tolerate: int) -> None:
        kind = _kind(thing)
        payload = _PAYLOADS[kind](thing, ifindex)
        self._sequence += 1
        self._socket.send(
            _HEADER.pack(16 + len(payload), kind if add else kind + 1, flags, self._sequence, 0) + payload
        )
        answer = self._socket.recv(65536)
        _, answer_kind, _, _, _ = _HEADER.unpack_from(answer)
        if answer_kind != _NLMSG_ERROR:
            raise KernelError("restore", errno.EPROTO, f"answer of type {answer_kind}")
        error = -struct.unpack_from("=i", answer, 16)[0]
        if error not in {0, tolerate}:
            raise KernelError("restore" if add else "remove", error, thing.text)


def _kind(thing: Captured) -> int:
    return int(_HEADER.unpack_from(thing.raw)[1])


def _address_payload(thing: Captured, ifindex: int) -> bytes:
    """struct ifaddrmsg with the index of today, then the attributes."""
    family, prefix, flags, scope, _index = struct.unpack_from("=BBBBI", thing.raw, 16)
    return struct.pack("=BBBBI", family, prefix, flags, scope, ifindex) + thing.raw[24:]


def _route_payload(thing: Captured, ifindex: int) -> bytes:
    """struct rtmsg without flags that only the kernel may set, RTA_OIF of today, no cache information."""
    fields = list(struct.unpack_from("=BBBBBBBBI", thing.raw, 16))
    fields[8] &= _RTNH_F_ONLINK
    payload = [struct.pack("=BBBBBBBBI", *fields)]
    for kind, data in _attributes(thing.raw[28:]):
        if kind != _RTA_CACHEINFO:
            payload.append(_attribute(kind, struct.pack("=I", ifindex) if kind == _RTA_OIF else data))
    return b"".join(payload)


def _neighbour_payload(thing: Captured, ifindex: int) -> bytes:
    """struct ndmsg with the index of today, no cache information."""
    family, state, flags, kind = struct.unpack_from("=BxxxxxxxHBB", thing.raw, 16)
    kept = [_attribute(*item) for item in _attributes(thing.raw[28:]) if item[0] not in {_NDA_CACHEINFO, _NDA_PROBES}]
    return struct.pack("=BxxxiHBB", family, ifindex, state, flags, kind) + b"".join(kept)


_PAYLOADS = {_RTM_NEWADDR: _address_payload, _RTM_NEWROUTE: _route_payload, _RTM_NEWNEIGH: _neighbour_payload}
_ABSENT = {_RTM_NEWADDR: errno.EADDRNOTAVAIL, _RTM_NEWROUTE: errno.ESRCH, _RTM_NEWNEIGH: errno.ENOENT}
"""How the kernel says that there is nothing to delete."""


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, offset)
        if length < 4:
            return
        yield kind, data[offset + 4 : offset + length]
        offset += (length + 3) & ~3


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
    for kind, data in _attributes(_raw(message)[24:]):
        if kind == 11 and data:
            return data[0]
    return 0


__all__ = [
    "IPRoute",
    "Message",
    "NetlinkError",
    "Replayer",
    "captured_address",
    "captured_neighbour",
    "captured_route",
    "default_route_targets",
    "link_state",
    "route_link",
]
