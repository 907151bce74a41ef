"""What a netdev takes along from the host into a pod."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nri_rdma.model.link import Captured
from nri_rdma.model.network import RouteConfig, RoutingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """The parts of the host's configuration that a netdev takes along, as far as the pod's cluster network allows."""

    addresses: bool = False
    routes: bool = False
    rules: bool = False
    neighbours: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return what it takes along, as people call it."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name))

    @property
    def anything(self) -> bool:
        """Return whether it takes anything along."""
        return self != Takes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """An address, a route or a neighbour of the host that is made anew in the pod, with what is different there.

    `is_sourceless`: a route without its preferred source, which is no address of the link in the pod. `is_alone`: an
    address without the route to its network, which would lead the pod's cluster network astray. `table`: another one
    than the route had, or 0.
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
    """The configuration that a netdev has in a pod because its host had it.

    `addresses` are there before the link is up, `things` (routes and neighbours) after it. `routes`, some of `rules`
    and `sysctls` the host did not have: they make each address of a pod with several netdevs leave through its own.
    """

    addresses: tuple[Brought, ...] = ()
    things: tuple[Brought, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    """What stays away from the pod, each with the reason."""
