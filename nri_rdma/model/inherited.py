"""The host configuration that a netdev takes along into a pod."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nri_rdma.model.link import Captured
from nri_rdma.model.network import RouteConfig, RoutingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """The parts of the host configuration that a netdev is to take along, as far as the pod's cluster network
    permits."""

    addresses: bool = False
    routes: bool = False
    rules: bool = False
    neighbours: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return the names of the parts that the netdev takes along."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name))

    @property
    def anything(self) -> bool:
        """Return whether the netdev takes any part along."""
        return self != Takes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """An address, a route or a neighbour of the host that is recreated in the pod, and how it differs there.

    `is_sourceless`: the route loses its preferred source, which is not an address of the link in the pod. `is_alone`:
    the address gets no route to its network, because that would draw the pod's cluster network to this link. `table`:
    the routing table in the pod if it is another one, otherwise 0.
    """

    thing: Captured
    is_sourceless: bool = False
    is_alone: bool = False
    table: int = 0

    def __str__(self) -> str:
        words = [self.thing.words]
        words += ["without src"] if self.is_sourceless else []
        words += ["without the route to its network"] if self.is_alone else []
        words += [f"in table {self.table}"] if self.table else []
        return ", ".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """The configuration that a netdev gets in a pod because it had it on the host.

    `addresses` are added before the link goes up, `things` (routes and neighbours) afterwards. `routes`, `sysctls` and
    some of `rules` were not on the host: they make each address of a pod with several netdevs use its own netdev.
    """

    addresses: tuple[Brought, ...] = ()
    things: tuple[Brought, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    """The parts that are not taken along into the pod, each with the reason."""
