"""Which of a request's netdevs a route or a neighbour is for: the one whose addresses reach it."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias

from nri_rdma.model.network import IpAddress, RouteConfig

NetdevAddresses: TypeAlias = Sequence[Sequence[IPv4Interface | IPv6Interface]]
"""The addresses of each netdev."""


def reaching(address: IpAddress, netdevs: NetdevAddresses) -> frozenset[int]:
    """Return the positions of the netdevs that have this address in one of their networks."""
    return frozenset(
        position
        for position, addresses in enumerate(netdevs)
        if any(it.version == address.version and address in it.network for it in addresses)
    )


def having(address: IpAddress, netdevs: NetdevAddresses) -> frozenset[int]:
    """Return the positions of the netdevs whose address it is."""
    return frozenset(
        position for position, addresses in enumerate(netdevs) if any(it.ip == address for it in addresses)
    )


def netdev_of_route(route: RouteConfig, netdevs: NetdevAddresses) -> int | None:
    """Return the position of the netdev that a route is for; None where several are possible, or none."""
    fitting = frozenset(range(len(netdevs)))
    if len(fitting) == 1:
        return 0
    if route.source is not None:
        fitting &= having(route.source, netdevs)
    for gateway in route.gateways:
        if not (route.onlink and route.source is not None):
            fitting &= reaching(gateway, netdevs)
    return next(iter(fitting)) if len(fitting) == 1 else None


def netdev_of_neighbour(address: IpAddress, netdevs: NetdevAddresses) -> int | None:
    """Return the position of the netdev that a neighbour is on; None where several are possible, or none."""
    fitting = frozenset({0}) if len(netdevs) == 1 else reaching(address, netdevs)
    return next(iter(fitting)) if len(fitting) == 1 else None
