"""Reads the IP addresses and permanent neighbours that a link loses when it moves, from rtnetlink's messages."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Final

from nri_rdma.attach.ops import AddAddress
from nri_rdma.host.netlink.sockets.route_socket import Request, RouteSocket
from nri_rdma.model.link import Captured
from nri_rdma.model.routing import IpInterface
from nri_rdma.wire.netlink import CREATE, EXCL, encode_attribute, encode_u32, read_attributes

_NEWADDR, _GETADDR, _GETNEIGH = 20, 22, 30  # RTM_*, include/uapi/linux/rtnetlink.h
_IFADDRMSG = struct.Struct("=BBBBI")
_NDMSG = struct.Struct("=BxxxiHBB")
_HEADER_BYTES = 16
_AF_INET, _AF_INET6 = 2, 10
_U32 = struct.Struct("=I")

_IFA_ADDRESS, _IFA_LOCAL, _IFA_LABEL, _IFA_BROADCAST, _IFA_FLAGS, _IFA_RT_PRIORITY = 1, 2, 3, 4, 8, 9
_IFA_PROTO = 11  # Linux 5.18
_IFA_F_NODAD = 0x02
_IFA_F_TEMPORARY = 0x01  # of IPv6; the same bit says "secondary" in IPv4
_IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA, _IFAPROT_KERNEL_LL = 1, 2, 3
_VOLATILE_ADDRESS_FLAGS = 0x40 | 0x08 | 0x20 | 0x04 | 0x800
"""Flags that are ignored when addresses are compared. Tentative, dadfailed, deprecated and optimistic change by
themselves. Only the kernel can set stable-privacy (RTM_NEWADDR ignores it), so a restored address lacks this flag."""

_NDA_DST, _NDA_LLADDR, _NDA_IFINDEX = 1, 2, 8
_NUD_PERMANENT = 0x80
NTF_PROXY: Final = 0x08


@dataclass(frozen=True, slots=True)
class AddressMessage:
    """An IP address of a link, from one message of the kernel. `own` holds the bytes of the link's own address; `raw`
    is the whole message."""

    ifindex: int
    own: bytes
    raw: bytes

    @property
    def prefix_length(self) -> int:
        """The prefix length of the address's network."""
        return int(_IFADDRMSG.unpack_from(self.raw, _HEADER_BYTES)[1])


def read_addresses(route: RouteSocket, ifindex: int = 0) -> tuple[AddressMessage, ...]:
    """Return the IP addresses of one link, or of all links if `ifindex` is 0. Raises KernelError if the kernel refuses
    the query, and WireError for a malformed message."""
    body = _IFADDRMSG.pack(0, 0, 0, 0, ifindex)
    found = []
    for raw in route.dump(_GETADDR, body, "list addresses"):
        told = dict(read_attributes(raw[_HEADER_BYTES + _IFADDRMSG.size :]))
        number = _IFADDRMSG.unpack_from(raw, _HEADER_BYTES)[4]
        found.append(AddressMessage(number, told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS, b""), raw))
    return tuple(found)


def carried_interface(message: AddressMessage) -> IpInterface:
    """Return the address of a message together with its prefix length."""
    return ip_interface((message.own, message.prefix_length))


def captured_addresses(messages: Iterable[AddressMessage]) -> tuple[Captured, ...]:
    """Return the addresses in a form that can be restored later, without IPv6 temporary addresses, which the kernel
    makes itself. Raises WireError for a malformed message.

    The order is the one in which to add them again. It matters for the choice of a source address. The kernel puts a
    new IPv6 address before the others, so its list of them is reversed here.
    """
    found = [captured for it in messages if (captured := _captured_address(it.raw)) is not None]
    of_ipv6 = [it for it in found if it.raw[_HEADER_BYTES] == _AF_INET6]
    others = [it for it in found if it.raw[_HEADER_BYTES] != _AF_INET6]
    return (*others, *reversed(of_ipv6))


def read_neighbours(route: RouteSocket, ifindex: int) -> tuple[Captured, ...]:
    """Return the neighbours of a link that an administrator set: permanent ones, and proxy entries. Raises KernelError
    if the kernel refuses the query, and WireError for a malformed message."""
    found = []
    for flags in (0, NTF_PROXY):
        body = _NDMSG.pack(0, 0, 0, flags, 0) + encode_u32(_NDA_IFINDEX, ifindex)
        for raw in route.dump(_GETNEIGH, body, f"list neighbours of link {ifindex}"):
            captured = _captured_neighbour(raw, ifindex)
            if captured is not None:
                found.append(captured)
    return tuple(found)


def add_address_request(ifindex: int, addition: AddAddress) -> Request:
    """Return the request that adds an address to a link. The request fails if the link has the address already.

    An IPv6 address is usable at once, because duplicate address detection, which takes a second and more, is left out.
    """
    address = addition.address
    family, flags = (_AF_INET, 0) if address.version == 4 else (_AF_INET6, _IFA_F_NODAD)
    packed = address.ip.packed
    return Request(
        kind=_NEWADDR,
        flags=CREATE | EXCL,
        body=_IFADDRMSG.pack(family, address.network.prefixlen, flags, 0, ifindex)
        + encode_attribute(_IFA_LOCAL, packed)
        + encode_attribute(_IFA_ADDRESS, packed),
        operation=f"{addition.describe()} to link {ifindex}",
    )


def _captured_address(raw: bytes) -> Captured | None:
    """Return the address in a form that can be restored; None for an IPv6 temporary address, which the kernel makes and
    drops by itself."""
    family, prefix, short_flags, scope, _ = _IFADDRMSG.unpack_from(raw, _HEADER_BYTES)
    told = dict(read_attributes(raw[_HEADER_BYTES + _IFADDRMSG.size :]))
    flags = _U32.unpack(told[_IFA_FLAGS])[0] if _IFA_FLAGS in told else short_flags
    if family == _AF_INET6 and flags & _IFA_F_TEMPORARY:
        return None
    protocol = told.get(_IFA_PROTO, b"\0")[0]
    parts = [
        f"{_address(told.get(_IFA_LOCAL) or told.get(_IFA_ADDRESS))}/{prefix}",
        f"peer {_address(told.get(_IFA_ADDRESS))}",
        f"scope {scope}",
        f"flags {flags & ~_VOLATILE_ADDRESS_FLAGS:#x}",
    ]
    if _IFA_BROADCAST in told:
        parts.append(f"broadcast {_address(told[_IFA_BROADCAST])}")
    if label := told.get(_IFA_LABEL, b"").rstrip(b"\0"):
        parts.append(f"label {label.decode(errors='backslashreplace')}")
    if _IFA_RT_PRIORITY in told:
        parts.append(f"rt_priority {_U32.unpack(told[_IFA_RT_PRIORITY])[0]}")
    if protocol:
        parts.append(f"proto {protocol}")
    return Captured(
        text=" ".join(parts),
        raw=raw,
        kernel_made=protocol in {_IFAPROT_KERNEL_LL, _IFAPROT_KERNEL_LO, _IFAPROT_KERNEL_RA},
    )


def _captured_neighbour(raw: bytes, ifindex: int) -> Captured | None:
    """Return a neighbour of the link `ifindex` that an administrator set, from the kernel's message `raw`. None if the
    kernel learned the neighbour, or if it belongs to another link."""
    _, of_link, state, flags, kind = _NDMSG.unpack_from(raw, _HEADER_BYTES)
    if of_link != ifindex or not (state & _NUD_PERMANENT or flags & NTF_PROXY):
        return None
    told = dict(read_attributes(raw[_HEADER_BYTES + _NDMSG.size :]))
    lladdr = told[_NDA_LLADDR].hex(":") if _NDA_LLADDR in told else None
    text = f"neighbour {_address(told.get(_NDA_DST))} lladdr {lladdr} flags {flags:#x} type {kind}"
    return Captured(text=text, raw=raw, kernel_made=False)


def _address(packed: bytes | None) -> str:
    if packed is None:
        return "None"
    return str(ip_address(packed)) if len(packed) in {4, 16} else packed.hex()
