"""Decides whether the host needs the default routes of a netdev that moves into a pod. Only default routes in routing
tables other than `main` are considered; policy routing with several rails uses one such table for each netdev.

Law: such a default route may leave the host together with its netdev if its table is used only by packets of the
netdev. Packets of the netdev have one of its addresses, or a rule selects them by the netdev as `iif` or `oif`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.model.link import LinkState
from nri_rdma.model.network import IpNetwork, RoutingRule
from nri_rdma.model.routing import KnownRule, Routing

_OF_VRFS = "l3mdev"
"""The word in a rule that leads to the tables of all VRFs."""


def default_route_reasons(link: LinkState, host: Routing) -> Iterator[str]:
    """Yield a sentence for each default route that the host would miss if the link moved into a pod, because packets of
    other links use the route's table, too. `host` has only default routes in tables that rules select (policy
    routing)."""
    for route in host.routes.get(link.ifindex, ()):
        leading = (it for it in host.rules if _leads_to(it, route.table, route.destination.version))
        foreign = next((it for it in leading if not _is_own(it.rule, link, host)), None)
        if foreign is not None:
            yield (
                f"{link.name} carries a default route in table {route.table}, to which more than the netdev's own"
                f" packets come (rule {foreign})"
            )


def _leads_to(known: KnownRule, table: int, version: int) -> bool:
    rule = known.rule
    if rule.version != version or rule.suppress_prefix_length is not None:  # any such length hides default routes
        return False
    return rule.table == table or _OF_VRFS in known.foreign.split(", ")


def _is_own(rule: RoutingRule, link: LinkState, host: Routing) -> bool:
    """Return whether a rule selects only packets of the netdev. A rule that names the netdev as `iif` or `oif` does,
    and so does one whose source or destination is a network of the netdev alone."""
    if rule.invert:
        return False
    ends = (it for it in (rule.source, rule.destination) if it is not None)
    return link.name in {rule.iif, rule.oif} or any(_is_of_netdev(it, link, host) for it in ends)


def _is_of_netdev(network: IpNetwork, link: LinkState, host: Routing) -> bool:
    """Return whether a network lies within the network of one of the netdev's addresses, and no other link of the host
    has an address in it."""
    owners = {
        ifindex
        for ifindex, addresses in host.addresses.items()
        if any(it.version == network.version and it.ip in network for it in addresses)
    }
    return owners == {link.ifindex} and any(
        it.version == network.version and it.ip in network and network.prefixlen >= it.network.prefixlen
        for it in host.addresses[link.ifindex]
    )
