"""Reads policy routing rules from rtnetlink's messages."""

from __future__ import annotations

import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from ipaddress import ip_network
from typing import Final

from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.network import IpNetwork, RoutingRule
from nri_rdma.model.routing import KnownRule
from nri_rdma.wire.netlink import read_attributes

_GETRULE = 34  # RTM_GETRULE, include/uapi/linux/rtnetlink.h
_RULE = struct.Struct("=BBBBBBBBI")  # struct fib_rule_hdr, include/uapi/linux/fib_rules.h
_HEADER_BYTES = 16
_KEPT = 64
"""The number of parsed rules to remember, because every namespace begins with a fixed set of rules."""
_TO_TABLE, _INVERT = 1, 0x2  # FR_ACT_TO_TBL, FIB_RULE_INVERT
_DST, _SRC, _IIF, _PRIORITY, _MARK, _SUPPRESS_PREFIX, _TABLE, _MASK, _OIF = 1, 2, 3, 6, 10, 14, 15, 16, 17  # FRA_*
_FLOW, _SUPPRESS_GROUP, _PAD, _L3MDEV, _PROTOCOL = 11, 13, 18, 19, 21
_COPIED = frozenset({_DST, _SRC, _IIF, _PRIORITY, _MARK, _SUPPRESS_PREFIX, _TABLE, _MASK, _OIF, _PAD, _PROTOCOL})
"""The attributes of a rule that the class RoutingRule has, and those without an effect: padding, and the rule's
origin."""
_NAMES: Final[Mapping[int, str]] = {
    4: "goto",
    _FLOW: "realms",
    12: "tun_id",
    _SUPPRESS_GROUP: "suppress_ifgroup",
    _L3MDEV: "l3mdev",
    20: "uidrange",
    22: "ipproto",
    23: "sport",
    24: "dport",
}
_ACTIONS: Final[Mapping[int, str]] = {2: "goto", 3: "nop", 6: "blackhole", 7: "unreachable", 8: "prohibit"}
_NONE = 0xFFFFFFFF


def read_rules(route: RouteSocket) -> tuple[KnownRule, ...]:
    """Return the IPv4 and IPv6 policy routing rules of the socket's namespace. Raises KernelError if the kernel refuses
    the query, and WireError for a malformed message."""
    return tuple(
        parse_rule(raw)
        for family in (socket.AF_INET, socket.AF_INET6)
        for raw in route.dump(_GETRULE, _RULE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0), "list rules")
    )


def parse_rule(raw: bytes) -> KnownRule:
    """Return the rule of one message of the kernel. Raises WireError for a malformed message."""
    return _parse(raw[_HEADER_BYTES:])


@lru_cache(_KEPT)
def _parse(body: bytes) -> KnownRule:
    family, to_bits, from_bits, tos, table, _, _, action, flags = _RULE.unpack_from(body)
    said = dict(read_attributes(body[_RULE.size :]))
    number = {kind: int.from_bytes(data, sys.byteorder) for kind, data in said.items()}
    suppressed = number.get(_SUPPRESS_PREFIX, _NONE)
    return KnownRule(
        rule=RoutingRule(
            version=6 if family == socket.AF_INET6 else 4,
            priority=number.get(_PRIORITY, 0),
            table=number.get(_TABLE, table),
            source=_network(said.get(_SRC), from_bits),
            destination=_network(said.get(_DST), to_bits),
            fwmark=number.get(_MARK, 0) if _MARK in number or _MASK in number else None,
            fwmask=number.get(_MASK),
            iif=_name(said.get(_IIF)),
            oif=_name(said.get(_OIF)),
            invert=bool(flags & _INVERT),
            suppress_prefix_length=None if suppressed == _NONE else suppressed,
        ),
        foreign=", ".join(_foreign(action, tos, number)),
    )


def _foreign(action: int, tos: int, number: Mapping[int, int]) -> Iterator[str]:
    """Yield the names of the parts of a rule that the class RoutingRule cannot express. `number` has the rule's netlink
    attributes: each attribute's value as a number, by the attribute's kind.

    The kernel also reports realms, l3mdev and the suppressed group if they are not set; these are left out.
    """
    if action != _TO_TABLE:
        yield _ACTIONS.get(action, f"action {action}")
    if tos:
        yield f"tos {tos:#x}"
    for kind, value in number.items():
        says_nothing = value == _NONE if kind == _SUPPRESS_GROUP else kind in {_FLOW, _L3MDEV} and not value
        if kind not in _COPIED and not says_nothing:
            yield _NAMES.get(kind, f"attribute {kind}")


def _network(packed: bytes | None, bits: int) -> IpNetwork | None:
    return ip_network((packed, bits), strict=False) if packed is not None else None


def _name(data: bytes | None) -> str:
    return (data or b"").rstrip(b"\0").decode(errors="surrogateescape")
