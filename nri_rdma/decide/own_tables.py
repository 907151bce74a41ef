"""Decides whether the host needs a netdev's default routes in routing tables of their own (policy routing per rail).

Law: such a default route may leave the host with its netdev only if no other packets use its table: only packets with
an address of the netdev, and packets that a rule selects by the netdev as `iif` or `oif`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.model.link import LinkState
from nri_rdma.model.network import IpNetwork, RoutingRule
from nri_rdma.model.routing import KnownRule, Routing

_OF_VRFS = "l3mdev"
"""The word in a rule that leads to the tables of all VRFs."""


def default_route_reasons(link: LinkState, host: Routing) -> Iterator[str]:
    """Yield why the host would miss a default route of the link: rules by which other packets reach its table. `host`
    has only the default routes outside the tables that all packets use."""
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
    """Return whether a rule selects only packets of the netdev. It suffices that the rule's source or destination is
    the netdev's."""
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
