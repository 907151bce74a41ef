"""Reads the MAC addresses that an administrator added to a link's receive filter (`bridge fdb add ... dev X self`). A
link loses them when it moves to another namespace.

The kernel's list also has the multicast addresses of IP groups, which IP itself adds again. /proc/net/dev_mcast shows
which addresses were added by hand.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.model.link import Captured
from nri_rdma.wire.netlink import read_attributes

_GETNEIGH = 30  # RTM_GETNEIGH, include/uapi/linux/rtnetlink.h
_NDMSG = struct.Struct("=BxxxiHBB")  # family, ifindex, state, flags, type
_HEADER_BYTES = 16
_FIRST_ATTRIBUTE = _HEADER_BYTES + _NDMSG.size
_AF_BRIDGE = 7
_NDA_LLADDR = 2
_NTF_SELF, _NUD_PERMANENT = 0x02, 0x80
_OF_EVERY_LINK = (bytes.fromhex("333300000001"), bytes.fromhex("01005e000001"))
_OF_AN_ADDRESS = bytes.fromhex("3333ff")
_MULTICASTS: Final = Path("/proc/thread-self/net/dev_mcast")
_NONE = frozenset({errno.EINVAL, errno.EOPNOTSUPP})
"""The kernel's errors for a link that has no forwarding entries."""


def read_forwarding(route: RouteSocket, ifindexes: Collection[int]) -> Mapping[int, tuple[Captured, ...]]:
    """Return the MAC addresses that an administrator added to each of these links. The calling thread must be in the
    links' namespace. Raises KernelError if the kernel refuses a query, and WireError for a malformed message."""
    listed = {ifindex: [*_listed(route, ifindex)] for ifindex in ifindexes}
    doubtful = any(is_multicast(mac) and not _is_usual(mac) for macs in listed.values() for mac, _ in macs)
    added = _added_multicasts() if doubtful else frozenset[tuple[int, bytes]]()
    return {
        ifindex: tuple(
            Captured(text=f"forwarding {mac.hex(':')}", raw=raw, kernel_made=False)
            for mac, raw in macs
            if not is_multicast(mac) or (ifindex, mac) in added
        )
        for ifindex, macs in listed.items()
    }


def is_multicast(mac: bytes) -> bool:
    """Return whether this MAC address is a multicast address."""
    return bool(mac[:1] and mac[0] & 1)


def _is_usual(mac: bytes) -> bool:
    """Return whether IP itself adds this multicast address to a link: every link that is up with IP has it, or an IPv6
    address needs it."""
    return mac in _OF_EVERY_LINK or mac.startswith(_OF_AN_ADDRESS)


def _listed(route: RouteSocket, ifindex: int) -> list[tuple[bytes, bytes]]:
    """Return the permanent forwarding entries of the link itself: each MAC address with the kernel's message about
    it."""
    try:
        messages = route.dump(
            _GETNEIGH, _NDMSG.pack(_AF_BRIDGE, ifindex, 0, 0, 0), f"list the forwarding entries of link {ifindex}"
        )
    except KernelError as error:
        if error.errno in _NONE:
            return []
        raise
    found = []
    for raw in messages:
        _, of_link, state, flags, _ = _NDMSG.unpack_from(raw, _HEADER_BYTES)
        if of_link == ifindex and flags & _NTF_SELF and state & _NUD_PERMANENT:
            mac = dict(read_attributes(raw[_FIRST_ATTRIBUTE:])).get(_NDA_LLADDR, b"")
            found.append((mac, raw))
    return found


def _added_multicasts() -> frozenset[tuple[int, bytes]]:
    """Return the ifindex and MAC address of each multicast address that was added by hand, and not by IP or a socket.

    A line of dev_mcast has the link's ifindex and name, the number of users of the address, a number that is not 0 if
    the address was added by hand, and the address.
    """
    try:
        lines = _MULTICASTS.read_text(errors="surrogateescape").splitlines()
    except OSError as error:
        raise KernelError(f"read {_MULTICASTS}", error.errno or 0) from error
    fields = (line.split() for line in lines)
    return frozenset((int(it[0]), bytes.fromhex(it[4])) for it in fields if len(it) == 5 and it[3] != "0")
