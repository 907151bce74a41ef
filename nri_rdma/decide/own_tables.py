"""Default routes of a netdev in tables of their own (policy routing per rail): whether the host needs them.

Law: a default route may leave with its netdev only where nothing but the netdev's own packets come to its table: those
with one of its addresses, and those that name it as `iif` or `oif`.
"""

from __future__ import annotations

from collections.abc import Iterator

from nri_rdma.model.link import LinkState
from nri_rdma.model.network import IpNetwork, RoutingRule
from nri_rdma.model.routing import KnownRule, Routing

_OF_VRFS = "l3mdev"
"""A rule with this word leads to the table of each VRF, whichever it is."""


def default_route_reasons(link: LinkState, host: Routing) -> Iterator[str]:
    """Yield why the host would miss a default route of the link: rules that other packets come under. `host` has the
    default routes outside the tables that all packets come to."""
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
    if rule.version != version or rule.suppress_prefix_length is not None:  # a default route is suppressed by any
        return False
    return rule.table == table or _OF_VRFS in known.foreign.split(", ")


def _is_own(rule: RoutingRule, link: LinkState, host: Routing) -> bool:
    """Return whether only packets of the netdev come under a rule: one of the addresses that it names suffices."""
    if rule.invert:
        return False
    ends = (it for it in (rule.source, rule.destination) if it is not None)
    return link.name in {rule.iif, rule.oif} or any(_is_of_netdev(it, link, host) for it in ends)


def _is_of_netdev(network: IpNetwork, link: LinkState, host: Routing) -> bool:
    """Return whether a network is that of one of the netdev's addresses, or within it, and no other link of the host
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
