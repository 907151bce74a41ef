"""The configuration of a netdev on the host that the netdev keeps when it moves into a pod."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nri_rdma.model.link import Captured
from nri_rdma.model.network import RouteConfig, RoutingRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """The parts of its host configuration that a netdev is to keep in a pod. A part that would divert packets of the
    pod's cluster network is left out nevertheless."""

    addresses: bool = False
    routes: bool = False
    rules: bool = False
    neighbours: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Return the names of the parts that the netdev is to keep, such as ``addresses``."""
        return tuple(item.name for item in fields(self) if getattr(self, item.name))

    @property
    def anything(self) -> bool:
        """Return whether the netdev is to keep any part of its host configuration in the pod."""
        return self != Takes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """An address, a route or a neighbour of the host that is recreated in the pod, perhaps with a difference.
    `is_sourceless`: the route has no preferred source in the pod, because the link does not have that address there.
    `is_alone`: the address gets no route to its network, because the route would take over packets of the pod's cluster
    network. `table`: the routing table in the pod; 0 if it is that of the host."""

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
    """The configuration that nri-rdma derives for a netdev in a pod from its configuration on the host. `addresses` are
    added before the link goes up, `things` (routes and neighbours) afterwards.

    `routes`, `sysctls` and some of `rules` are new: in a pod with several netdevs they make packets of an address leave
    by the address's own netdev.
    """

    addresses: tuple[Brought, ...] = ()
    things: tuple[Brought, ...] = ()
    routes: tuple[RouteConfig, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    sysctls: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()
    """The parts of the host configuration that the netdev does not keep in the pod, each with the reason."""
