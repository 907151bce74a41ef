"""Which of a request's netdevs a route or a neighbour is for: the one whose addresses reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias

from nri_rdma.model.network import IpAddress, RouteConfig
from nri_rdma.model.request import DeviceRequest

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


def request_of_one(request: DeviceRequest, number: int) -> DeviceRequest:
    """Return the request for one of its devices: with what is that device's, and for the first one with what is the
    namespace's (rules, routes that lead nowhere)."""
    netdevs = request.interface.addresses
    interface = replace(
        request.interface,
        addresses=netdevs[number : number + 1],
        macs=request.interface.macs[number : number + 1],
    )
    return replace(
        request,
        count=1,
        interface=interface,
        routes=tuple(
            it for it in request.routes if (netdev_of_route(it, netdevs) if it.is_over_netdev else 0) == number
        ),
        rules=request.rules if number == 0 else (),
        neighbours=tuple(it for it in request.neighbours if netdev_of_neighbour(it.destination, netdevs) == number),
    )
