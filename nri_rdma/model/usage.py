"""The host's use of its links at one time: all that decides whether a netdev may be given away."""

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
    """Return the address that a text is; None for anything else, 0.0.0.0 and :: too."""
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return None if address.is_unspecified else address


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSocket:
    """A socket of the host's namespace that is tied to one of its addresses or links.

    `protocol` is ``tcp`` or ``udp``, `address` its own end (an IPv4 one also of an IPv6 socket), None for every
    address; `ifindex` is the link that it is bound to (SO_BINDTODEVICE), or 0.
    """

    protocol: str
    address: Address | None
    port: int
    ifindex: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifelines:
    """The addresses that the node and its pods live by, as its administrator names them: the node's own, the API
    server's, and those of the cluster's services."""

    node_ips: tuple[Address, ...] = ()
    api_server: Address | None = None
    service_range: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostUse:
    """The host's links with the addresses, sockets and routes on them.

    `programs` are those of the netdevs of RDMA devices by ifindex, as far as there are any.
    `default_route_links` are the links with a default route that any packet may take; `routing` has the default routes
    in other tables, the host's rules, and the addresses of all links, or nothing without such a route. `addresses` are
    those of each link by ifindex, `networks` the same with their prefixes, as texts; `sockets` those that are tied to
    one of these addresses or links (of a busy host some thousand others are not listed); `api_server_links` the links
    that the kernel's route to the API server leads to.
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
    """News of the kernel about the host's links, addresses or routes: the objects that changed, not their new state.

    `ifindexes` are the link itself, what it is a child of and what it is enslaved to; `is_physical` is a link that has
    a bus device; `address` one that the link has, packed: a new one, or one whose state has changed (a second or two
    after an IPv6 address came, the kernel reports that it is unique). `rule_table` is the table of a rule that came or
    went, 0 for a rule that names none.
    """

    ifindexes: frozenset[int] = frozenset()
    name: str = ""
    is_physical: bool = False
    is_default_route: bool = False
    address: bytes = b""
    rule_table: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The links of RDMA devices: those on the host by ifindex, with their addresses, and all by the names that sysfs
    has for them. `tables` are those in which these links have a default route, beside the tables that all packets come
    to."""

    ifindexes: frozenset[int] = frozenset()
    names: frozenset[str] = frozenset()
    addresses: Mapping[int, frozenset[bytes]] = field(default_factory=dict)
    tables: frozenset[int] = frozenset()
