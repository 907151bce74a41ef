"""The host's use of its links at one time. It decides whether a netdev may move into a pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TypeAlias

from nri_rdma.model.device import EbpfPrograms
from nri_rdma.model.link import LinkState
from nri_rdma.model.routing import Routing

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


def parse_address(text: str) -> Address | None:
    """Parse an IP address. Return None for any other text, and for 0.0.0.0 and ::."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return None if address.is_unspecified else address


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSocket:
    """A socket of the host that is bound to an address or a link of the host.

    `protocol` is ``tcp`` or ``udp``. `address` is the local address; None means any address. An IPv6 socket may have an
    IPv4 address. `ifindex` is the link to which the socket is bound (SO_BINDTODEVICE), or 0.
    """

    protocol: str
    address: Address | None
    port: int
    ifindex: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifelines:
    """The addresses that the node and its pods cannot do without: those of the node, of the API server, and of the
    cluster's services. The administrator configures them."""

    node_ips: tuple[Address, ...] = ()
    api_server: Address | None = None
    service_range: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """The host's links, with the addresses, sockets and routes on them. Each map has a link's ifindex as its key.

    `programs` are the eBPF programs of RDMA devices' netdevs. `default_route_links` are the links with a default route
    that any packet may take. `routing` has the default routes that only some packets take, with the host's rules and
    addresses; it is empty if there is none of these routes. `networks` are the addresses with prefix lengths, as texts.
    `sockets` are those bound to an address or link of this value. `api_server_links` are the links that the route to
    the API server uses.
    """

    links: tuple[LinkState, ...] = ()
    programs: Mapping[int, EbpfPrograms] = field(default_factory=dict)
    default_route_links: frozenset[int] = frozenset()
    routing: Routing = field(default_factory=Routing)
    addresses: Mapping[int, frozenset[Address]] = field(default_factory=dict)
    networks: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    sockets: tuple[HostSocket, ...] = ()
    lifelines: Lifelines = Lifelines()
    api_server_links: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A report of the kernel that links, addresses or routes of the host changed. It names the objects, not their new
    state.

    `ifindexes` are the link itself, the link of which it is a child, and the link that it is enslaved to.
    `is_physical`: the link has a bus device. `address` is an address that was added or whose state changed, in binary
    form. `rule_table` is the table of an added or removed rule, 0 if the rule names none, and None if the change is not
    about a rule.
    """

    ifindexes: frozenset[int] = frozenset()
    name: str = ""
    is_physical: bool = False
    is_default_route: bool = False
    address: bytes = b""
    rule_table: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The links of RDMA devices, whose changes matter. `ifindexes` and `addresses` have the links that are on the host.
    `names` has the names in sysfs of all links. `tables` are the routing tables with a default route of these links,
    without SHARED_TABLES."""

    ifindexes: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    addresses: Mapping[int, frozenset[bytes]] = field(default_factory=dict)
    tables: frozenset[int] = frozenset()
