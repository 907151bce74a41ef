"""Reads the names and addresses of network links, and networks: each function checks and converts one value."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
)
from typing import TypeAlias

from nri_rdma.model.network import IpAddress, IpNetwork
from nri_rdma.text.forms import Form, pattern_schema
from nri_rdma.text.nodes import Node
from nri_rdma.text.reading import matching, string
from nri_rdma.text.refusals import quoted, refused

Address: TypeAlias = IPv4Interface | IPv6Interface

IPV6, IPV6_MTU = 6, 1280
"""The version number of IPv6 and its least MTU (RFC 8200, 5): the kernel removes IPv6 from a link with a smaller
MTU."""

# Names

_NETDEV_NAME = re.compile(r"[!-.0-9;-~]{1,15}")
"""Matches printable ASCII without ``/`` and ``:``, which dev_valid_name() of the kernel accepts. IFNAMSIZ is 16
including the NUL."""
NETDEV_HINT = "use 1 to 15 printable characters without blanks, / and :"
_NETDEV_TEXT = matching(_NETDEV_NAME, NETDEV_HINT)
_RESERVED_NETDEV_NAMES = frozenset({".", "..", "lo", "all", "default"})
"""Names that no link in a pod may get. ``all`` and ``default`` are folders of net.ipv4.conf, and the kernel refuses
links with these two names."""


def netdev_name(node: Node, where: str) -> str:
    """Read a name that the kernel accepts for a link. Raises RequestError for any other value."""
    name = _NETDEV_TEXT(node, where)
    if name in _RESERVED_NETDEV_NAMES:
        raise refused(where, f"{name!r} is reserved", NETDEV_HINT)
    return name


NETDEV = Form(netdev_name, pattern_schema(_NETDEV_NAME))
ANY_NETDEV = Form(_NETDEV_TEXT, pattern_schema(_NETDEV_NAME))
"""The Form (reader and JSON Schema) of a netdev's name in a routing rule. It also allows ``lo``: a rule for ``lo``
selects the packets that the pod itself sends."""

# Addresses

_INTERFACE = re.compile(r"[0-9A-Fa-f:.]+/[0-9]+")
"""Matches every address with a prefix length. A text that it matches may still be no valid address."""
_HOST = re.compile(r"[0-9A-Fa-f:.]+")
_MAC = re.compile(r"[0-9A-Fa-f]{2}(?::[0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5}")


def interface_address(node: Node, where: str) -> Address:
    """Read the address of one host with its prefix length. Raises RequestError for any other value, such as a multicast
    address."""
    hint = "write an address with its prefix length, such as 10.0.0.2/24 or fd00::2/64"
    text = string(node, where, hint)
    if not _has_length(text):
        raise refused(where, f"{quoted(text)} is not an address with a prefix length", hint)
    try:
        address = ip_interface(text)
    except ValueError as error:
        raise refused(where, f"{quoted(text)} is not an address with a prefix length", hint) from error
    misuse = _misuse_of(address.ip) or next((what for is_misuse, what in _MISUSES if is_misuse(address)), "")
    if misuse:
        raise refused(where, f"{text} is {misuse}", "write the address of one host")
    return address


def host_address(node: Node, where: str) -> IpAddress:
    """Read the address of one host, without a prefix length. Raises RequestError for any other value, such as a
    multicast address."""
    hint = "write an address such as 10.0.0.1 or fd00::1"
    text = string(node, where, hint)
    try:
        address = ip_address(text if "%" not in text else "")
    except ValueError as error:
        raise refused(where, f"{quoted(text)} is not an address", hint) from error
    if misuse := _misuse_of(address):
        raise refused(where, f"{text} is {misuse}", "write the address of one host")
    return address


def network(node: Node, where: str) -> IpNetwork:
    """Read a network; 0.0.0.0/0 and ::/0 stand for all addresses. Raises RequestError for any other value, and for a
    loopback network."""
    hint = "write a network with its prefix length, such as 10.0.0.0/8, 0.0.0.0/0 or fd00::/64"
    text = string(node, where, hint)
    if not _has_length(text):
        raise refused(where, f"{quoted(text)} is not a network with a prefix length", hint)
    host, _, length = text.partition("/")
    try:
        address = ip_address(host)
        kind = IPv4Network if address.version == 4 else IPv6Network
        found = kind(
            (int(address), int(length)), strict=False
        )  # built from numbers, so that the text is not parsed again
    except ValueError as error:
        raise refused(where, f"{quoted(text)} is not a network with a prefix length", hint) from error
    if address != found.network_address:
        raise refused(where, f"{text} is the address of a host in its network", f"write {found}")
    if found.is_loopback:
        raise refused(where, f"{text} is a loopback network", "write a network behind the netdev")
    return found


def hardware_address(node: Node, where: str) -> str:
    """Read the MAC of one station; return it with colons, in lower case. Raises RequestError for any other value, such
    as a multicast MAC."""
    hint = "write six bytes such as 02:00:5e:10:00:01"
    text = string(node, where, hint)
    if not _MAC.fullmatch(text):
        raise refused(where, f"{quoted(text)} is not a MAC", hint)
    mac = text.lower().replace("-", ":")
    first = int(mac[:2], 16)
    if mac == "ff:ff:ff:ff:ff:ff" or first & 1 or mac == "00:00:00:00:00:00":
        kind = {"ff:ff:ff:ff:ff:ff": "the broadcast MAC", "00:00:00:00:00:00": "no MAC"}.get(mac, "a multicast MAC")
        raise refused(where, f"{mac} is {kind}", "write the MAC of one station: the first byte is even")
    return mac


def _has_length(text: str) -> bool:
    host, slash, length = text.partition("/")
    return bool(slash) and length.isascii() and length.isdecimal() and "%" not in host


def _misuse_of(address: IpAddress) -> str:
    """Return why an address cannot belong to one host, such as "a multicast address"; "" if it can. The address comes
    without its prefix length: Python 3.11 does not recognise ``::`` in ``::/64`` as the unspecified address."""
    return next((what for is_misuse, what in _MISUSES_OF_HOSTS if is_misuse(address)), "")


_BROADCAST = IPv4Address("255.255.255.255")
_MISUSES_OF_HOSTS: tuple[tuple[Callable[[IpAddress], bool], str], ...] = (
    (lambda it: it.is_unspecified, "the unspecified address"),
    (lambda it: it.is_loopback, "a loopback address"),
    (lambda it: it.is_multicast, "a multicast address"),
    (lambda it: isinstance(it, IPv6Address) and it.ipv4_mapped is not None, "an IPv4 address in the form of IPv6"),
    (lambda it: it == _BROADCAST, "the broadcast address"),
)
_MISUSES: tuple[tuple[Callable[[Address], bool], str], ...] = (
    (lambda it: it.network.prefixlen == 0, "in a network that is everything"),
    (lambda it: _is_subnet(it) and it.ip == it.network.network_address, "the network's address"),
    (lambda it: _is_subnet(it) and it.ip == it.network.broadcast_address, "the broadcast address"),
)


def _is_subnet(address: Address) -> bool:
    """Return whether the first and the last address of the network are reserved. They are reserved in IPv4, except in
    /31 (RFC 3021) and in /32."""
    return address.version == 4 and address.network.prefixlen < 31


INTERFACE_ADDRESS = Form(interface_address, pattern_schema(_INTERFACE))
HOST_ADDRESS = Form(host_address, pattern_schema(_HOST))
NETWORK = Form(network, pattern_schema(_INTERFACE))
MAC = Form(hardware_address, pattern_schema(_MAC))
