"""Finds the netdev of a request that a route or a neighbour belongs to: the one whose addresses can reach it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias

from nri_rdma.model.network import IpAddress, RouteConfig
from nri_rdma.model.request import DeviceRequest

NetdevAddresses: TypeAlias = Sequence[Sequence[IPv4Interface | IPv6Interface]]
"""The addresses of each netdev, in the order of the netdevs."""


class Reach:
    """Finds the netdevs of an address by a lookup table, so that many netdevs do not make it slow."""

    def __init__(self, netdevs: NetdevAddresses) -> None:
        self._every = frozenset(range(len(netdevs)))
        self._networks: dict[tuple[int, int], dict[int, set[int]]] = {}
        """For each IP version and number of host bits, the positions of the netdevs by network, which is written as the
        address without its host bits."""
        self._hosts: dict[IpAddress, set[int]] = {}
        for position, addresses in enumerate(netdevs):
            for it in addresses:
                host_bits = it.max_prefixlen - it.network.prefixlen
                networks = self._networks.setdefault((it.version, host_bits), {})
                networks.setdefault(int(it.network.network_address) >> host_bits, set()).add(position)
                self._hosts.setdefault(it.ip, set()).add(position)

    def reaching(self, address: IpAddress) -> frozenset[int]:
        """Return the positions of the netdevs with the address in one of their networks."""
        number = int(address)
        found: set[int] = set()
        for (version, host_bits), networks in self._networks.items():
            if version == address.version:
                found |= networks.get(number >> host_bits, set())
        return frozenset(found)

    def having(self, address: IpAddress) -> frozenset[int]:
        """Return the positions of the netdevs that have the address itself."""
        return frozenset(self._hosts.get(address, ()))

    def netdev_of_route(self, route: RouteConfig) -> int | None:
        """Return the position of the netdev that the route belongs to; None if no netdev fits, or several."""
        fitting = self._every
        if len(fitting) == 1:
            return 0
        if route.source is not None:
            fitting &= self.having(route.source)
        for gateway in route.gateways:
            if not (route.onlink and route.source is not None):
                fitting &= self.reaching(gateway)
        return next(iter(fitting)) if len(fitting) == 1 else None

    def netdev_of_neighbour(self, address: IpAddress) -> int | None:
        """Return the position of the netdev that the neighbour belongs to; None if no netdev fits, or several."""
        fitting = self._every if len(self._every) == 1 else self.reaching(address)
        return next(iter(fitting)) if len(fitting) == 1 else None


def request_of_one(request: DeviceRequest, number: int) -> DeviceRequest:
    """Return the part of a request that concerns one of its devices. Rules and reject routes belong to the namespace;
    they are in the part of the first device."""
    netdevs = request.interface.addresses
    reach = Reach(netdevs)
    interface = replace(
        request.interface,
        addresses=netdevs[number : number + 1],
        macs=request.interface.macs[number : number + 1],
    )
    return replace(
        request,
        count=1,
        interface=interface,
        routes=tuple(it for it in request.routes if (reach.netdev_of_route(it) if it.is_over_netdev else 0) == number),
        rules=request.rules if number == 0 else (),
        neighbours=tuple(it for it in request.neighbours if reach.netdev_of_neighbour(it.destination) == number),
    )
