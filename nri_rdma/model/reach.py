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


class Reach:
    """Finds the netdevs that an address is for: in one table, whatever the number of netdevs."""

    def __init__(self, netdevs: NetdevAddresses) -> None:
        self._every = frozenset(range(len(netdevs)))
        self._networks: dict[tuple[int, int], dict[int, set[int]]] = {}
        """By IP version and the number of bits that are no part of the network: the positions by the network's bits."""
        self._hosts: dict[IpAddress, set[int]] = {}
        for position, addresses in enumerate(netdevs):
            for it in addresses:
                host_bits = it.max_prefixlen - it.network.prefixlen
                networks = self._networks.setdefault((it.version, host_bits), {})
                networks.setdefault(int(it.network.network_address) >> host_bits, set()).add(position)
                self._hosts.setdefault(it.ip, set()).add(position)

    def reaching(self, address: IpAddress) -> frozenset[int]:
        """Return the positions of the netdevs that have this address in one of their networks."""
        number = int(address)
        found: set[int] = set()
        for (version, host_bits), networks in self._networks.items():
            if version == address.version:
                found |= networks.get(number >> host_bits, set())
        return frozenset(found)

    def having(self, address: IpAddress) -> frozenset[int]:
        """Return the positions of the netdevs whose address it is."""
        return frozenset(self._hosts.get(address, ()))

    def netdev_of_route(self, route: RouteConfig) -> int | None:
        """Return the position of the netdev that a route is for; None where several are possible, or none."""
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
        """Return the position of the netdev that a neighbour is on; None where several are possible, or none."""
        fitting = self._every if len(self._every) == 1 else self.reaching(address)
        return next(iter(fitting)) if len(fitting) == 1 else None


def request_of_one(request: DeviceRequest, number: int) -> DeviceRequest:
    """Return the request for one of its devices: with what is that device's, and for the first one with what is the
    namespace's (rules, routes that lead nowhere)."""
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
