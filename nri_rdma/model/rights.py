"""The rights over a pod's network that a rule of the node can grant to pods."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import StrEnum
from typing import Final

from nri_rdma.model.request import DeviceRequest


class InterfaceRight(StrEnum):
    """A right of a pod over its netdevs. Its value is the word in a rule's `interface`."""

    NAME = "name"
    MTU = "mtu"
    ADDRESSES = "addresses"
    ARP = "arp"
    """The right to set the keys `arpIgnore` and `arpAnnounce`."""
    IPV6 = "ipv6"
    """The right to set the key `enableIPv6`."""
    OFFLOAD = "offload"
    """The right to set the keys of GSO and GRO sizes."""
    ROUTES = "routes"
    RULES = "rules"
    NEIGHBORS = "neighbors"
    MAC = "mac"
    FORWARDING = "forwarding"
    EBPF = "ebpf"
    """The right to set the key `disableEbpfPrograms`."""
    ETHTOOL = "ethtool"
    VRF = "vrf"


DEFAULT_RIGHTS: Final = frozenset(
    {
        InterfaceRight.NAME,
        InterfaceRight.MTU,
        InterfaceRight.ADDRESSES,
        InterfaceRight.ARP,
        InterfaceRight.IPV6,
        InterfaceRight.OFFLOAD,
    }
)
"""The rights of pods to which no rule grants other rights. A pod with these rights cannot divert packets of its cluster
network or impersonate another station, and its changes end with the pod."""


def keys_of(rights: Collection[InterfaceRight]) -> tuple[str, ...]:
    """Return the keys of a request that these rights permit, as pod authors write them."""
    return tuple(sorted({key for right, _, key in (*_OF_INTERFACE, *_OF_REQUEST) if right in rights}))


def rights_needed(request: DeviceRequest) -> Iterator[tuple[InterfaceRight, str]]:
    """Yield each right that a pod needs for this request, with the key of the request that needs it (`interface.mtu`).
    Which rights a pod has is up to the administrator's rules."""
    for right, field, key in _OF_INTERFACE:
        if getattr(request.interface, field) != getattr(_PLAIN.interface, field):
            yield right, f"interface.{key}"
    for right, field, key in _OF_REQUEST:
        if getattr(request, field) != getattr(_PLAIN, field):
            yield right, key


_PLAIN: Final = DeviceRequest(name="", where="")
"""A request with default values, which needs no right."""
_OF_INTERFACE: Final = (
    (InterfaceRight.NAME, "name", "name"),
    (InterfaceRight.MTU, "mtu", "mtu"),
    (InterfaceRight.ADDRESSES, "addresses", "addresses"),
    (InterfaceRight.MAC, "macs", "hardwareAddr"),
    (InterfaceRight.OFFLOAD, "gso_max_size", "gsoMaxSize"),
    (InterfaceRight.OFFLOAD, "gro_max_size", "groMaxSize"),
    (InterfaceRight.OFFLOAD, "gso_ipv4_max_size", "gsoIPv4MaxSize"),
    (InterfaceRight.OFFLOAD, "gro_ipv4_max_size", "groIPv4MaxSize"),
    (InterfaceRight.EBPF, "disables_ebpf", "disableEbpfPrograms"),
    (InterfaceRight.FORWARDING, "forwarding", "forwarding"),
    (InterfaceRight.ARP, "arp_ignore", "arpIgnore"),
    (InterfaceRight.ARP, "arp_announce", "arpAnnounce"),
    (InterfaceRight.IPV6, "enable_ipv6", "enableIPv6"),
    (InterfaceRight.VRF, "vrf", "vrf"),
)
_OF_REQUEST: Final = (
    (InterfaceRight.ROUTES, "routes", "routes"),
    (InterfaceRight.RULES, "rules", "rules"),
    (InterfaceRight.NEIGHBORS, "neighbours", "neighbors"),
    (InterfaceRight.ETHTOOL, "ethtool", "ethtool"),
)
"""Rows of right, field of DeviceRequest, and key as pod authors write it. A key without a row would need no right, so a
test ensures that every key has one."""
