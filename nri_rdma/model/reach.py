"""Finds the netdev of a request to which a route or a neighbour belongs: the netdev whose addresses can reach it."""

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
    """Finds the netdevs of a request that can reach an address. A lookup table keeps this fast with many netdevs.
    Methods return a netdev as its position, which is its index in the list given to the constructor."""

    def __init__(self, netdevs: NetdevAddresses) -> None:
        self._every = frozenset(range(len(netdevs)))
        self._networks: dict[tuple[int, int], dict[int, set[int]]] = {}
        """The netdevs of each network, as indexes in the constructor's list. Keys are the IP version with the number of
        host bits, then the network's address without its host bits."""
        self._hosts: dict[IpAddress, set[int]] = {}
        for position, addresses in enumerate(netdevs):
            for it in addresses:
                host_bits = it.max_prefixlen - it.network.prefixlen
                networks = self._networks.setdefault((it.version, host_bits), {})
                networks.setdefault(int(it.network.network_address) >> host_bits, set()).add(position)
                self._hosts.setdefault(it.ip, set()).add(position)

    def reaching(self, address: IpAddress) -> frozenset[int]:
        """Return the netdevs that have a network with this address in it, as indexes in the constructor's list."""
        number = int(address)
        found: set[int] = set()
        for (version, host_bits), networks in self._networks.items():
            if version == address.version:
                found |= networks.get(number >> host_bits, set())
        return frozenset(found)

    def having(self, address: IpAddress) -> frozenset[int]:
        """Return the netdevs to which this very address is assigned, as indexes in the constructor's list."""
        return frozenset(self._hosts.get(address, ()))

    def netdev_of_route(self, route: RouteConfig) -> int | None:
        """Return the index, in the constructor's list, of the netdev that has the route's source and reaches its
        gateways. Return None if no netdev or several netdevs do."""
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
        """Return the index, in the constructor's list, of the netdev that has a network with the neighbour's address in
        it. A single netdev is always returned. Return None if no netdev or several netdevs have such a network."""
        fitting = self._every if len(self._every) == 1 else self.reaching(address)
        return next(iter(fitting)) if len(fitting) == 1 else None


def request_of_one(request: DeviceRequest, number: int) -> DeviceRequest:
    """Return the part of a request that concerns its device number `number`. Rules and reject routes belong to the
    namespace; they are in the part of the first device."""
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
