"""Parses rtnetlink's messages of links into LinkState, and encodes the requests that change a link.

The name or alias of a link may hold any bytes. Bytes that are not UTF-8 become surrogate characters, and are encoded
back unchanged.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from nri_rdma.attach.ops import AddAltName, DropAltName, SetLink
from nri_rdma.host.netlink.links.link_message import FIRST_ATTRIBUTE, HEADER_BYTES, KEPT, attributes_of_body
from nri_rdma.host.netlink.restore.replay import link_settings
from nri_rdma.host.netlink.sockets.route_socket import Request, RouteSocket
from nri_rdma.model.link import LinkState
from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import APPEND, CREATE, EXCL, NESTED, encode_attribute, encode_u32, read_attributes

log = logging.getLogger(__name__)

NEWLINK: Final = 16  # RTM_*, include/uapi/linux/rtnetlink.h
_GETLINK, _NEWLINKPROP, _DELLINKPROP = 18, 108, 109

_IFINFOMSG = struct.Struct("=BxHiII")
_INDEX_AND_FLAGS = struct.Struct("=iI")
_U32 = struct.Struct("=I")
_I32 = struct.Struct("=i")
_IFF_UP = 0x1

_ADDRESS, _IFNAME, _MTU, _LINK, _MASTER = 1, 3, 4, 5, 10  # IFLA_*, include/uapi/linux/if_link.h
_TXQLEN, _LINKINFO, _IFALIAS, _NET_NS_FD, _EXT_MASK = 13, 18, 20, 28, 29
_LINK_NETNSID, _XDP, _TARGET_NETNSID, _NEW_IFINDEX = 37, 43, 46, 49
_MAX_MTU, _PROP_LIST, _ALT_IFNAME = 51, 52, 53
_PERM_ADDRESS, _PARENT_DEV_NAME, _PARENT_DEV_BUS_NAME = 54, 56, 57
_INFO_KIND, _XDP_ATTACHED = 1, 2
UNREADABLE: Final = "unreadable"
"""The value of LinkState.kind for a link whose message cannot be parsed."""
_NO_LINK = (1 << 31) - 1
_SKIP_STATISTICS = encode_u32(_EXT_MASK, 0x8)  # RTEXT_FILTER_SKIP_STATS: they are a third of a message


def read_links(route: RouteSocket) -> list[bytes]:
    """Return the messages of all links in the socket's namespace. Raises KernelError if the kernel does not list
    them."""
    return route.dump(_GETLINK, _IFINFOMSG.pack(0, 0, 0, 0, 0) + _SKIP_STATISTICS, "list links")


def read_link(route: RouteSocket, ifindex: int, netns: int = -1) -> bytes:
    """Return the message of one link. Raises KernelError: ENODEV if there is no such link.

    `netns` is the id by which the socket's namespace knows the namespace of the link; -1: the link is in the socket's
    own namespace.
    """
    body = _IFINFOMSG.pack(0, 0, ifindex, 0, 0) + _SKIP_STATISTICS
    if netns >= 0:
        body += encode_attribute(_TARGET_NETNSID, _I32.pack(netns))
    return route.ask(_GETLINK, body, f"read link {ifindex}")


def number_of(message: bytes) -> int:
    """Return the ifindex in a link's message."""
    return int(_INDEX_AND_FLAGS.unpack_from(message, 20)[0])


def tied_to(ifindexes: Collection[int], messages: Collection[bytes]) -> list[bytes]:
    """Return the messages of these links and of their masters, slaves and children; other messages may be among them.

    The selection works without parsing all messages: a busy node has hundreds of links, and parsing one takes 30 us.
    """
    own = [message for message in messages if number_of(message) in ifindexes]
    masters = {_number(dict(read_attributes(message[FIRST_ATTRIBUTE:])), _MASTER) for message in own}
    pattern = re.compile(
        b"|".join(re.escape(encode_u32(kind, ifindex)) for ifindex in ifindexes for kind in (_LINK, _MASTER)) or b"(?!)"
    )
    return [
        message
        for message in messages
        if number_of(message) in ifindexes or number_of(message) in masters or pattern.search(message)
    ]


def parse_readable(messages: Collection[bytes]) -> tuple[LinkState, ...]:
    """Return the links of these messages, without their addresses and routes. Messages that cannot be parsed are
    skipped.

    The kernel itself sends such messages: the length of a macvlan's source addresses overflows at 64 KiB. One such link
    must not hide all others.
    """
    found = []
    for message in messages:
        try:
            found.append(parse_link(message))
        except WireError as error:
            log.debug("link skipped", extra={"ifindex": number_of(message), "error": str(error)})
    return tuple(found)


def parse_start(message: bytes) -> LinkState:
    """Return what a malformed message says before its malformed attribute: name, ifindex, MAC address, master and lower
    link.

    The `kind` of the result is UNREADABLE, so the link is never taken for the netdev of an RDMA device.
    """
    ifindex, flags = _INDEX_AND_FLAGS.unpack_from(message, 20)
    told: dict[int, bytes] = {}
    try:
        for number, data in read_attributes(message[FIRST_ATTRIBUTE:]):
            told.setdefault(number, data)  # the first value counts; data after a wrong length may be anything
    except WireError as error:
        log.debug("link read in part", extra={"ifindex": ifindex, "error": str(error)})
    return LinkState(
        ifindex=ifindex,
        name=_text(told.get(_IFNAME, b"")),
        kind=UNREADABLE,
        parent="",
        permanent_mac="",
        mac=_mac(told.get(_ADDRESS, b"")),
        mtu=_number(told, _MTU),
        txqlen=_number(told, _TXQLEN),
        alias="",
        alt_names=(),
        up=bool(flags & _IFF_UP),
        master=_number(told, _MASTER),
        lower=_number(told, _LINK),
    )


def parse_link(message: bytes) -> LinkState:
    """Return the link of a netlink message, which does not include addresses and routes. Raises WireError for a
    malformed message."""
    return _parse(message[HEADER_BYTES:])


@lru_cache(KEPT)
def _parse(body: bytes) -> LinkState:
    ifindex, flags = _INDEX_AND_FLAGS.unpack_from(body, 4)
    told = attributes_of_body(body)
    kind = _text(dict(read_attributes(told[_LINKINFO])).get(_INFO_KIND, b"")) if _LINKINFO in told else ""
    parent = _text(told.get(_PARENT_DEV_NAME, b""))
    return LinkState(
        ifindex=ifindex,
        name=_text(told.get(_IFNAME, b"")),
        kind=kind,
        parent=f"{_text(told.get(_PARENT_DEV_BUS_NAME, b''))}/{parent}" if parent else "",
        permanent_mac=_mac(told.get(_PERM_ADDRESS, b"")),
        mac=_mac(told.get(_ADDRESS, b"")),
        mtu=_number(told, _MTU),
        txqlen=_number(told, _TXQLEN),
        alias=_text(told.get(_IFALIAS, b"")),
        alt_names=tuple(
            _text(data) for number, data in read_attributes(told.get(_PROP_LIST, b"")) if number == _ALT_IFNAME
        ),
        up=bool(flags & _IFF_UP),
        master=_number(told, _MASTER),
        lower=_lower(told, kind, ifindex),
        max_mtu=_number(told, _MAX_MTU),
        peer=_peer(told, ifindex),
        peer_netns=_netns_of_peer(told),
        xdp=any(dict(read_attributes(told.get(_XDP, b""))).get(_XDP_ATTACHED, b"")),
        settings=link_settings(flags, told),
    )


def move_request(ifindex: int, fd: int, name: str, as_ifindex: int, operation: str) -> Request:
    """Return the request that moves a link into the namespace of the descriptor `fd`, gives it the name `name` and,
    unless `as_ifindex` is 0, the number `as_ifindex`, all in one step."""
    body = _of(ifindex) + encode_attribute(_NET_NS_FD, _I32.pack(fd)) + encode_attribute(_IFNAME, _bytes(name))
    if as_ifindex:
        body += encode_attribute(_NEW_IFINDEX, _I32.pack(as_ifindex))
    return Request(kind=NEWLINK, body=body, operation=operation)


def empty_request() -> Request:
    """Return a request to change a link that does not exist. The kernel answers ENODEV, or EPERM to a process that may
    not change links, so the request tests this process's rights."""
    return Request(kind=NEWLINK, body=_of(_NO_LINK), operation="ask whether links may be changed")


def change_request(ifindex: int, change: SetLink) -> Request:
    """Return the request that changes the link `ifindex`. Only fields of `change` that are not None are changed."""
    flags = (_IFF_UP if change.up else 0, _IFF_UP if change.up is not None else 0)
    body = _IFINFOMSG.pack(0, 0, ifindex, *flags)
    if change.mac is not None:
        body += encode_attribute(_ADDRESS, bytes.fromhex(change.mac.replace(":", "")))
    if change.name is not None:
        body += encode_attribute(_IFNAME, _bytes(change.name))
    if change.mtu is not None:
        body += encode_u32(_MTU, change.mtu)
    if change.txqlen is not None:
        body += encode_u32(_TXQLEN, change.txqlen)
    if change.alias is not None:
        body += encode_attribute(_IFALIAS, os.fsencode(change.alias))
    return Request(kind=NEWLINK, body=body, operation=f"set link {ifindex}: {change.describe()}")


def add_alt_name_request(ifindex: int, addition: AddAltName) -> Request:
    """Return the request that adds an alternative name to a link. The kernel appends it to the link's list of
    alternative names, so the order of the names is kept."""
    return Request(
        kind=_NEWLINKPROP,
        flags=CREATE | EXCL | APPEND,
        body=_alt_name(ifindex, addition.name),
        operation=f"set link {ifindex}: {addition.describe()}",
    )


def drop_alt_name_request(ifindex: int, removal: DropAltName) -> Request:
    """Return the request that removes one alternative name of a link."""
    return Request(
        kind=_DELLINKPROP,
        body=_alt_name(ifindex, removal.name),
        operation=f"set link {ifindex}: {removal.describe()}",
    )


def _alt_name(ifindex: int, name: str) -> bytes:
    return _of(ifindex) + encode_attribute(_PROP_LIST | NESTED, encode_attribute(_ALT_IFNAME, _bytes(name)))


def _peer(told: Mapping[int, bytes], ifindex: int) -> int:
    """Return the ifindex of the link to which this link is attached (IFLA_LINK); 0 if it is not attached to any.

    For a link that is not attached, the kernel reports no IFLA_LINK, or the link's own number.
    """
    peer = _number(told, _LINK)
    return peer if peer != ifindex or _LINK_NETNSID in told else 0


def _netns_of_peer(told: Mapping[int, bytes]) -> int:
    return int(_I32.unpack(told[_LINK_NETNSID])[0]) if _LINK_NETNSID in told else -1


def _of(ifindex: int) -> bytes:
    return _IFINFOMSG.pack(0, 0, ifindex, 0, 0)


def _lower(told: Mapping[int, bytes], kind: str, ifindex: int) -> int:
    """Return the ifindex of the link of which this link is a child (IFLA_LINK of a vlan, macvlan and so on), if both
    are in one namespace; otherwise 0. A veth has no such link: its IFLA_LINK is the peer."""
    if kind == "veth" or _LINK_NETNSID in told:
        return 0
    lower = _number(told, _LINK)
    return lower if lower != ifindex else 0


def _number(told: Mapping[int, bytes], attribute: int) -> int:
    data = told.get(attribute, b"")
    return int(_U32.unpack(data)[0]) if len(data) == _U32.size else 0


def _text(data: bytes) -> str:
    return os.fsdecode(data.partition(b"\0")[0])


def _bytes(text: str) -> bytes:
    return os.fsencode(text) + b"\0"


def _mac(data: bytes) -> str:
    return data.hex(":")
