"""Decides which of its addresses, routes, neighbours and rules on the host a netdev keeps when it moves into a pod.

Law: the pod's cluster network keeps working. A route or rule is left on the host, and reported, if it would divert
packets to the pod's own address or gateway, the service range, the API server or the node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from itertools import chain, count
from typing import Final

from nri_rdma.model.carried import CarriedAddress, CarriedRoute, carried_address, carried_route, neighbour_version
from nri_rdma.model.inherited import Brought, Inherited, Takes
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import MAIN_TABLE, IpAddress, IpNetwork, RouteConfig, RoutingRule
from nri_rdma.model.routing import SHARED_TABLES, IpInterface, KnownRule, Routing
from nri_rdma.model.usage import Lifelines

OWN_PRIORITY: Final = 32765
"""The priority of rules that send packets from an address of a pod by the netdev with that address. It comes after the
host's rules, and before the rule of the table `main` (32766)."""
FIRST_OWN_TABLE: Final = 30000
"""The number of the first routing table to which rules with OWN_PRIORITY lead; each further netdev gets the next free
number."""
SEVERAL_SYSCTLS: Final = (
    ("ipv4/conf/rp_filter", "2"),
    ("ipv4/conf/arp_ignore", "1"),
    ("ipv4/conf/arp_announce", "2"),
)
"""The sysctls of a netdev if a pod has several netdevs. The netdev then answers ARP for its own addresses only, and
accepts packets whose answer would leave by another netdev."""
_IPV6, _IPV6_MTU = 6, 1280
_TOLD_MAX = 20
"""The most addresses, routes and rules that were left out and that a report lists one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A netdev that moves into a pod. `takes` says what the netdev may keep of its configuration on the host. `given`
    are the addresses that the pod requests instead of the host's. `has_ipv6`: the pod's request allows IPv6 on the
    netdev."""

    link: LinkState
    pod_name: str
    takes: Takes
    given: tuple[IpInterface, ...] = ()
    mtu: int | None = None
    has_ipv6: bool = True


@dataclass(frozen=True, slots=True)
class _Protected:
    network: IpNetwork
    why: str


def inherit(
    arrivals: Sequence[Arrival], host_rules: Sequence[KnownRule], pod: Routing, lifelines: Lifelines
) -> tuple[Inherited, ...]:
    """Decide what each netdev keeps of its addresses, routes, neighbours and rules on the host. `arrivals` are the
    netdevs that move into the pod; `pod` is the routing of the pod's namespace before they move. `lifelines` are the
    addresses that must stay reachable: those of the node, the API server and the services."""
    protected = tuple(_protected(pod, lifelines))
    taken = [_Netdev(it, pod, protected) for it in arrivals]
    rules_of_pod = {it.rule for it in pod.rules}
    for netdev in taken:
        netdev.take_addresses()
        netdev.take_rules(host_rules, rules_of_pod)
        netdev.take_routes()
        netdev.take_neighbours()
    _part(taken, _numbers(pod, taken), pod)
    return tuple(it.inherited() for it in taken)


def leading_away(
    routes: Iterable[RouteConfig], pod: Routing, lifelines: Lifelines, *, has_rules: bool = False
) -> tuple[str, ...]:
    """Return a sentence for each route that would divert packets of the pod's cluster network. `routes` are those that
    the pod requests, and `pod` is the known routing of its namespace. `lifelines` are the addresses of the node, the
    API server and the services. `has_rules`: routes in all tables count, because rules may send packets to any
    table."""
    protected = tuple(_protected(pod, lifelines))
    asked = (it for it in routes if it.is_over_netdev and (has_rules or it.table in SHARED_TABLES))
    found = ((it, [known.why for known in protected if _overlap(known.network, it.destination)]) for it in asked)
    return tuple(f"the route {route} covers {', '.join(dict.fromkeys(why))}" for route, why in found if why)


class _Netdev:
    """A netdev that moves into a pod, while its addresses, routes, neighbours and rules are chosen one kind after the
    other."""

    def __init__(self, arrival: Arrival, pod: Routing, protected: tuple[_Protected, ...]) -> None:
        self.arrival = arrival
        self._pod = pod
        self._pod_tables = _tables_of(pod) - SHARED_TABLES
        self._pod_routes = {_key(it) for it in chain.from_iterable(pod.routes.values())}
        self._protected = protected
        self._left_out: list[str] = []
        self._taken_addresses: list[Brought] = []
        self._things: list[Brought] = []
        self._open_tables: set[int] = set()
        self.own: list[CarriedAddress] = []
        """The addresses that the netdev will have in the pod."""
        self.main_routes: list[Brought] = []
        self.rules: list[RoutingRule] = []
        self.own_routes: list[RouteConfig] = []
        self.sysctls: tuple[tuple[str, str], ...] = ()
        link, takes = arrival.link, arrival.takes
        routes = [(thing, carried_route(thing)) for thing in link.routes if takes.routes]
        self._routes = [(thing, said) for thing, said in routes if said is not None]
        addresses = [(thing, carried_address(thing)) for thing in link.addresses if takes.anything]
        self._addresses = [(thing, said) for thing, said in addresses if said is not None]
        self._left_out += (f"{thing.words}: it is not of IP" for thing, said in (*addresses, *routes) if said is None)
        self._no_ipv6 = self._why_no_ipv6()

    @property
    def tables(self) -> set[int]:
        """The routing tables of the host that have routes of this netdev, by number."""
        return {it.route.table for _, it in self._routes}

    def take_addresses(self) -> None:
        """Decide which addresses the netdev takes into the pod."""
        self.own += [CarriedAddress(it, it.network, False) for it in self.arrival.given]
        if not self.arrival.takes.addresses:
            return
        for thing, said in self._addresses:
            if thing.kernel_made and said.own.is_link_local:
                continue  # the kernel creates a link-local address by itself
            if said.is_hosts:
                self.leave_out(str(said.own), "only the host itself uses it (scope host)")
                continue
            if said.own.version == _IPV6 and self._no_ipv6:
                self.leave_out(str(said.own), self._no_ipv6)
                continue
            why = "" if said.has_no_route else self._covers(said.network)
            if why:
                self.leave_out(f"the route to {said.network} of its address {said.own}", why)
            self._taken_addresses.append(Brought(thing=thing, is_alone=bool(why)))
            self.own.append(replace(said, has_no_route=said.has_no_route or bool(why)))

    def take_rules(self, host_rules: Iterable[KnownRule], present: set[RoutingRule]) -> None:
        """Decide which rules the netdev takes into the pod, and add them to `present`, the rules that the pod has."""
        if not self.arrival.takes.rules:
            return
        tables = self.tables - SHARED_TABLES
        for known in host_rules:
            rule = known.rule
            if not self._concerns(rule, tables):
                continue
            if why := self._why_not(known):
                self.leave_out(f"the rule {known}", why)
                continue
            if self._is_open(rule):
                self._open_tables.add(rule.table)
            renamed = _renamed(self.arrival, rule)
            if renamed not in present:
                present.add(renamed)
                self.rules.append(renamed)

    def take_routes(self) -> None:
        """Decide which routes the netdev takes into the pod. Routes to connected networks come first, because the
        gateways of other routes are in these networks."""
        reached = [it.network for it in self.own if not it.has_no_route]
        sources = {it.own.ip for it in self.own}
        known: set[str] = set()
        for thing, said in sorted(self._routes, key=lambda pair: pair[1].route.gateway is not None):
            if said.is_kernels:
                continue  # the kernel adds it with the address
            if why := self._why_no_route(said, reached):
                self.leave_out(f"the route {said.route}", why)
                continue
            if said.route.gateway is None:
                reached.append(said.route.destination)
            source = said.route.source
            taken = Brought(thing=thing, is_sourceless=source is not None and source not in sources)
            if _key(said.route) in self._pod_routes:
                self.leave_out(f"the route {said.route}", "the pod has such a route")
                if said.route.table == MAIN_TABLE:
                    self.main_routes.append(taken)  # still needed in the netdev's own table, if it gets one
                continue
            text = thing.text.replace(f" src {source}", "") if taken.is_sourceless else thing.text
            if text in known:
                continue  # the two routes differ only in their source
            known.add(text)
            self._things.append(taken)
            if said.route.table == MAIN_TABLE:
                self.main_routes.append(taken)

    def take_neighbours(self) -> None:
        """Decide which neighbours the netdev takes into the pod."""
        if self.arrival.takes.neighbours:
            kept = (it for it in self.arrival.link.neighbours if not (neighbour_version(it) == _IPV6 and self._no_ipv6))
            self._things += (Brought(thing=thing) for thing in kept)

    def part(self, table: int) -> None:
        """Add rules and routes by which packets from each address of the netdev leave by this netdev. `table` is the
        number of a routing table for this netdev alone."""
        mine = [it for it in self.own if not it.own.is_link_local]
        sources = {ip_network(it.own.ip): None for it in mine}
        self.rules += (RoutingRule(version=it.version, priority=OWN_PRIORITY, table=table, source=it) for it in sources)
        connected = [it for it in mine if not it.has_no_route and it.network.num_addresses > 1]
        self.own_routes += {
            it.network: RouteConfig(
                destination=it.network, source=it.own.ip if it.own.version != _IPV6 else None, table=table
            )
            for it in reversed(connected)
        }.values()
        self._things += (replace(it, table=table) for it in self.main_routes)

    def leave_out(self, what: str, why: str) -> None:
        """Record that the pod does not get the address, route or rule that `what` describes, and the reason."""
        self._left_out.append(f"{what}: {why}")

    def inherited(self) -> Inherited:
        """Return the addresses, routes, rules, neighbours and sysctls that the netdev gets in the pod, and a text for
        each thing that is left out."""
        more = len(self._left_out) - _TOLD_MAX
        told = (*self._left_out[:_TOLD_MAX], *([f"and {more} more"] if more > 0 else []))
        return Inherited(
            addresses=tuple(self._taken_addresses),
            things=tuple(self._things),
            routes=tuple(self.own_routes),
            rules=tuple(self.rules),
            sysctls=self.sysctls,
            left_out=told,
        )

    # -- below -------------------------------------------------------------------------------------------------------

    def _why_no_ipv6(self) -> str:
        if not self._pod.has_ipv6:
            return "the pod has no IPv6"
        if not self.arrival.has_ipv6:
            return "the request switches IPv6 off"
        mtu = self.arrival.mtu or self.arrival.link.mtu
        return f"an MTU of {mtu} is too small for IPv6" if mtu < _IPV6_MTU else ""

    def _covers(self, network: IpNetwork) -> str:
        return next((f"it covers {it.why}" for it in self._protected if _overlap(it.network, network)), "")

    def _concerns(self, rule: RoutingRule, tables: Collection[int]) -> bool:
        if rule.table in tables or self.arrival.link.name in {rule.iif, rule.oif}:
            return True
        source = rule.source
        return source is not None and any(
            it.own.version == source.version and it.own.ip in source and source.prefixlen >= it.network.prefixlen
            for _, it in self._addresses
        )

    def _why_not(self, known: KnownRule) -> str:
        rule = known.rule
        others = {rule.iif, rule.oif} - {"", "lo", self.arrival.link.name}
        if known.foreign:
            return "it cannot be copied"
        if rule.version == _IPV6 and self._no_ipv6:
            return self._no_ipv6
        if others:
            return f"it names the host's link {', '.join(sorted(others))}"
        if rule.table in self._pod_tables:
            return f"the pod has a table {rule.table} of its own"
        if _is_lost(rule.source, (it for _, it in self._addresses), self.own):
            return "the netdev has no address in its source in the pod"
        return ""

    def _is_open(self, rule: RoutingRule) -> bool:
        """Return whether the rule may select packets of the pod's cluster network, which must keep their way."""
        if self.arrival.link.name in {rule.iif, rule.oif}:
            return False
        if rule.invert:
            return True
        if rule.fwmark:
            return False
        protected = [it.network for it in self._protected]
        if rule.source is not None and not any(_overlap(it, rule.source) for it in protected):
            return False
        return rule.destination is None or any(_overlap(it, rule.destination) for it in protected)

    def _why_no_route(self, said: CarriedRoute, reached: Collection[IpNetwork]) -> str:
        route = said.route
        if route.destination.version == _IPV6 and self._no_ipv6:
            return self._no_ipv6
        if route.table in self._pod_tables:
            return f"the pod has a table {route.table} of its own"
        if route.table in SHARED_TABLES | self._open_tables and (why := self._covers(route.destination)):
            return why
        gateway = route.gateway
        if gateway is None or said.is_onlink or (gateway.is_link_local and gateway.version == _IPV6):
            return ""
        is_reached = any(_contains(network, gateway) for network in reached)
        return "" if is_reached else f"its gateway {gateway} is not reached from the addresses in the pod"


def _renamed(arrival: Arrival, rule: RoutingRule) -> RoutingRule:
    """Return the rule with the netdev's name on the host replaced by its name in the pod."""
    names = {arrival.link.name: arrival.pod_name}
    return replace(rule, iif=names.get(rule.iif, rule.iif), oif=names.get(rule.oif, rule.oif))


def _part(netdevs: Sequence[_Netdev], numbers: Iterator[int], pod: Routing) -> None:
    """Make packets from each address leave by its own netdev, if several netdevs of the pod have addresses.

    A netdev whose request gives routes or rules is left unchanged, because its author decides its routing. Netdevs of
    earlier attaches are left unchanged, too.
    """
    with_addresses = [it for it in netdevs if any(not own.own.is_link_local for own in it.own)]
    of_earlier = chain.from_iterable(pod.addresses.get(it, ()) for it in sorted(pod.netdevs))
    earlier = [own.ip for own in of_earlier if not own.is_link_local]
    if len(with_addresses) + bool(earlier) < 2:
        return
    parted = {
        it.rule.source for it in pod.rules if it.rule.priority == OWN_PRIORITY and it.rule.table >= FIRST_OWN_TABLE
    }
    bare = ", ".join(str(it) for it in earlier if ip_network(it) not in parted)
    for netdev in with_addresses:
        if netdev.arrival.takes.rules and netdev.arrival.takes.routes:
            netdev.sysctls = SEVERAL_SYSCTLS
            netdev.part(next(numbers))
            if bare:
                netdev.leave_out(f"a table for {bare}", "the pod had that address before, on a netdev that came alone")


def _is_lost(source: IpNetwork | None, host: Iterable[CarriedAddress], pod: Iterable[CarriedAddress]) -> bool:
    """Return whether a rule for packets from the network `source` has no purpose in the pod: the netdev had addresses
    in the network on the host (`host`), and has none of them in the pod (`pod`). A network in which it never had an
    address is not lost: the rule is then for packets that the netdev forwards."""
    return (
        source is not None
        and any(_contains(source, it.own.ip) for it in host)
        and not any(_contains(source, it.own.ip) for it in pod)
    )


def _numbers(pod: Routing, netdevs: Iterable[_Netdev]) -> Iterator[int]:
    """Yield numbers of routing tables that are unused in the pod."""
    taken = _tables_of(pod).union(
        *(it.tables for it in netdevs), *({rule.table for rule in it.rules} for it in netdevs)
    )
    return (number for number in count(FIRST_OWN_TABLE) if number not in taken)


def _tables_of(pod: Routing) -> set[int]:
    of_routes = {route.table for route in chain.from_iterable(pod.routes.values())}
    return of_routes | {it.rule.table for it in pod.rules}


def _key(route: RouteConfig) -> tuple[IpNetwork, int, int]:
    """Return the destination, table and metric: the kernel does not accept two routes that agree in all three."""
    return route.destination, route.table, route.metric


def _protected(pod: Routing, lifelines: Lifelines) -> Iterator[_Protected]:
    """Yield the networks that must stay reachable over the pod's cluster network, each with a name for reports. The
    links of the cluster network are those with a default route, or all links if no link has one. Netdevs of earlier
    attaches do not count."""
    others = pod.addresses.keys() - pod.netdevs
    chosen = {it for it in others if any(not route.destination.prefixlen for route in pod.routes.get(it, ()))} or others
    for ifindex, addresses in ((it, pod.addresses[it]) for it in sorted(chosen)):
        for own in addresses:
            if not own.is_loopback and not (own.is_link_local and own.version == _IPV6):
                yield _Protected(ip_network(own.ip), f"the pod's address {own.ip}")
        for gateway in {it.gateway: None for it in pod.routes.get(ifindex, ()) if it.gateway is not None}:
            if not (gateway.is_link_local and gateway.version == _IPV6):
                yield _Protected(ip_network(gateway), f"the pod's gateway {gateway}")
    for network in lifelines.service_range:
        yield _Protected(network, f"the service range {network}")
    if lifelines.api_server is not None:
        yield _Protected(ip_network(lifelines.api_server), f"the API server {lifelines.api_server}")
    for address in lifelines.node_ips:
        yield _Protected(ip_network(address), f"the node's address {address}")


def _overlap(one: IpNetwork, other: IpNetwork) -> bool:
    return one.version == other.version and one.overlaps(other)


def _contains(network: IpNetwork, address: IpAddress) -> bool:
    return network.version == address.version and address in network
