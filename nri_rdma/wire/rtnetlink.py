"""rtnetlink's reports of changed links, queues, addresses, routes and rules: bytes to values, without I/O.

Only the identity of the changed objects is read from a message; a rescan reads their new state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from nri_rdma.model.usage import Change
from nri_rdma.wire.error import WireError
from nri_rdma.wire.netlink import HEADER, read_attributes, read_messages

GROUPS: Final = 0x1 | 0x8 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x40000
"""The multicast groups RTMGRP_LINK and RTMGRP_TC, and those of addresses, routes and rules of IPv4 and IPv6
(include/uapi/linux/rtnetlink.h)."""
NEWROUTE, DELROUTE = 24, 25
DST_LEN_AT: Final = 17
"""The offset of the destination's prefix length in a route message; length 0 is a default route."""

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR = 16, 17, 20, 21
_NEWRULE, _DELRULE = 32, 33
_NEWQDISC, _DELQDISC, _NEWTFILTER, _DELTFILTER = 36, 37, 44, 45
_TCMSG = struct.Struct("=BxxxiIII")
_IFINFOMSG, _IFADDRMSG, _RTMSG = struct.Struct("=BxHiII"), struct.Struct("=BBBBI"), struct.Struct("=BBBBBBBBI")
_IFLA_IFNAME, _IFLA_LINK, _IFLA_MASTER, _IFLA_LINK_NETNSID, _IFLA_PARENT_DEV_NAME = 3, 5, 10, 37, 56
_IFA_ADDRESS, _IFA_LOCAL = 1, 2  # include/uapi/linux/if_addr.h
_FRA_TABLE = 15  # include/uapi/linux/fib_rules.h; struct fib_rule_hdr has the size of struct rtmsg
_U32 = struct.Struct("=I")


def read_changes(datagram: bytes) -> Iterator[Change]:
    """Yield the changes that a datagram reports. Messages of other kinds are skipped. Raises WireError for a broken
    message."""
    for message in read_messages(datagram):
        read = _READERS.get(message.kind)
        if read is not None:
            yield read(message.whole[HEADER.size :])


def _link(payload: bytes) -> Change:
    _, _, ifindex, _, _ = _fields(_IFINFOMSG, payload)
    told = dict(read_attributes(payload[_IFINFOMSG.size :]))
    # For a pod's veth the number is one of the pod's namespace, so it could be the number of any link here.
    lower = _number(told, _IFLA_LINK) if _IFLA_LINK_NETNSID not in told else 0
    return Change(
        ifindexes=frozenset({ifindex, lower, _number(told, _IFLA_MASTER)}) - {0},
        name=told.get(_IFLA_IFNAME, b"").partition(b"\0")[0].decode(errors="replace"),
        is_physical=_IFLA_PARENT_DEV_NAME in told,
    )


def _address(payload: bytes) -> Change:
    """Return the change of an address. For an address with a peer, this is the link's own address, not the peer's."""
    *_, ifindex = _fields(_IFADDRMSG, payload)
    told = dict(read_attributes(payload[_IFADDRMSG.size :]))
    return Change(ifindexes=frozenset({ifindex}), address=told.get(_IFA_LOCAL, told.get(_IFA_ADDRESS, b"")))


def _address_gone(payload: bytes) -> Change:
    return replace(_address(payload), address=b"")


def _queue(payload: bytes) -> Change:
    """Return the change of a link's queueing discipline or TC filter. A filter shared by several links has no link
    number, so its change names no link; the next rescan sees it."""
    _, ifindex, *_ = _fields(_TCMSG, payload)
    return Change(ifindexes=frozenset({ifindex}) if ifindex > 0 else frozenset())


def _route(payload: bytes) -> Change:
    _, prefix, *_ = _fields(_RTMSG, payload)
    return Change(is_default_route=not prefix)


def _rule(payload: bytes) -> Change:
    """Return the change of a routing rule, with the rule's table. A table number above 255 is in an attribute of the
    message."""
    table = _fields(_RTMSG, payload)[4]
    return Change(rule_table=_number(dict(read_attributes(payload[_RTMSG.size :])), _FRA_TABLE) or table)


_READERS: Mapping[int, Callable[[bytes], Change]] = {
    _NEWLINK: _link,
    _DELLINK: _link,
    _NEWADDR: _address,
    _DELADDR: _address_gone,
    _NEWQDISC: _queue,
    _DELQDISC: _queue,
    _NEWTFILTER: _queue,
    _DELTFILTER: _queue,
    NEWROUTE: _route,
    DELROUTE: _route,
    _NEWRULE: _rule,
    _DELRULE: _rule,
}


def _fields(form: struct.Struct, payload: bytes) -> tuple[int, ...]:
    if len(payload) < form.size:
        raise WireError(f"{len(payload)} bytes instead of at least {form.size}")
    return form.unpack_from(payload)


def _number(told: Mapping[int, bytes], attribute: int) -> int:
    data = told.get(attribute, b"")
    return int(_U32.unpack(data)[0]) if len(data) == _U32.size else 0
