"""The network configuration of a netdev in a pod, as a request writes it, beyond name, MTU and addresses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpNetwork: TypeAlias = IPv4Network | IPv6Network

MAIN_TABLE = 254
SCOPE_UNIVERSE, SCOPE_LINK = 0, 253
"""RT_SCOPE_*, include/uapi/linux/rtnetlink.h."""


class RouteType(StrEnum):
    """The kind of a route, in the words of `ip route`. All but `unicast` are reject routes, which lead to no device."""

    UNICAST = "unicast"
    BLACKHOLE = "blackhole"
    UNREACHABLE = "unreachable"
    PROHIBIT = "prohibit"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextHop:
    """One gateway of a route that has several gateways."""

    gateway: IpAddress
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteConfig:
    """A route over the netdev, or a reject route of the pod (`type`). For `metric`, `mtu` and `advmss`, 0 means unset;
    the kernel gives an IPv6 route without a metric the metric 1024."""

    destination: IpNetwork
    gateway: IpAddress | None = None
    source: IpAddress | None = None
    scope: int = SCOPE_UNIVERSE
    table: int = MAIN_TABLE
    metric: int = 0
    onlink: bool = False
    mtu: int = 0
    advmss: int = 0
    type: RouteType = RouteType.UNICAST
    multipath: tuple[NextHop, ...] = ()

    @property
    def is_over_netdev(self) -> bool:
        """Return whether the route leads over a netdev, so that the kernel removes it when the netdev leaves."""
        return self.type is RouteType.UNICAST

    @property
    def gateways(self) -> tuple[IpAddress, ...]:
        """Return all gateways of the route."""
        return (self.gateway,) if self.gateway is not None else tuple(hop.gateway for hop in self.multipath)

    @property
    def identity(self) -> tuple[IpNetwork, int, int]:
        """Return destination, table and metric. No two routes of a namespace agree in all three."""
        return (self.destination, self.table, self.metric)

    def __str__(self) -> str:
        kind = "" if self.is_over_netdev else f"{self.type} "
        words = [f"{kind}{self.destination}", f"via {self.gateway}" if self.gateway is not None else ""]
        words += (f"nexthop {hop.gateway} weight {hop.weight}" for hop in self.multipath)
        words += (
            f"src {self.source}" if self.source is not None else "",
            f"metric {self.metric}" if self.metric else "",
            f"table {self.table}" if self.table != MAIN_TABLE else "",
            f"mtu {self.mtu}" if self.mtu else "",
            f"advmss {self.advmss}" if self.advmss else "",
            "onlink" if self.onlink else "",
        )
        return " ".join(filter(None, words))


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRule:
    """A routing rule of the pod's network namespace: packets that meet its conditions are looked up in `table`.
    `version` is 4 or 6; in a request it may be 0, which means both."""

    priority: int
    table: int
    version: int = 0
    source: IpNetwork | None = None
    destination: IpNetwork | None = None
    fwmark: int | None = None
    fwmask: int | None = None
    iif: str = ""
    oif: str = ""
    invert: bool = False
    suppress_prefix_length: int | None = None

    @property
    def selectors(self) -> int:
        """Return the number of conditions that a packet must meet."""
        told = (self.source, self.destination, self.fwmark, self.iif or None, self.oif or None)
        return sum(item is not None for item in told)

    def __str__(self) -> str:
        words = [
            f"{self.priority}:",
            "not" if self.invert else "",
            f"from {self.source if self.source is not None else 'all'}",
            f"to {self.destination}" if self.destination is not None else "",
            f"fwmark {_mark(self.fwmark, self.fwmask)}" if self.fwmark is not None else "",
            f"iif {self.iif}" if self.iif else "",
            f"oif {self.oif}" if self.oif else "",
            f"lookup {self.table}",
            f"suppress_prefixlength {self.suppress_prefix_length}" if self.suppress_prefix_length is not None else "",
        ]
        return " ".join(filter(None, words))


def _mark(mark: int, mask: int | None) -> str:
    return f"{mark:#x}" if mask is None else f"{mark:#x}/{mask:#x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourConfig:
    """A permanent neighbour: the kernel does not ask the network for its hardware address."""

    destination: IpAddress
    mac: str

    def __str__(self) -> str:
        return f"{self.destination} lladdr {self.mac}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VrfConfig:
    """A VRF that the netdev joins in the pod. It is created if the pod has no VRF of this name."""

    name: str
    table: int
    ifindex: int = 0
    """The interface number for the VRF if it must be created. No netdev of the pod gets this number. 0 in a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EthtoolConfig:
    """Settings of a netdev under the names that ethtool uses."""

    features: tuple[tuple[str, bool], ...] = ()
    private_flags: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """The configuration of one netdev in the pod, beyond its name, MTU and addresses."""

    mac: str = ""
    settings: tuple[tuple[str, int], ...] = ()
    """GSO and GRO sizes by name, such as ``gso_max_size``."""
    sysctls: tuple[tuple[str, str], ...] = ()
    features: tuple[tuple[str, bool], ...] = ()
    private_flags: tuple[tuple[str, bool], ...] = ()
    detaches_ebpf: bool = False
    vrf: VrfConfig | None = None
    neighbours: tuple[NeighbourConfig, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    """The routes in the order in which they are added: a route that reaches a gateway comes before the routes over that
    gateway."""
    rules: tuple[RoutingRule, ...] = ()
    """The routing rules to add, each for one IP version."""
