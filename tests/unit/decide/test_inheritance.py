"""What a netdev takes along into a pod, and what stays on the host because of the pod's cluster network."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.decide.inheritance import (
    FIRST_OWN_TABLE,
    OWN_PRIORITY,
    SEVERAL_SYSCTLS,
    Arrival,
    inherit,
    leading_away,
)
from nri_rdma.model.inherited import Brought, Inherited, Takes
from nri_rdma.model.link import Captured, LinkState
from nri_rdma.model.network import RouteConfig, RouteType, RoutingRule
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import Lifelines

ALL = Takes(addresses=True, routes=True, rules=True, neighbours=True)
LINK_LOCAL = Captured(text="fe80::1/64 peer fe80::1 scope 253 flags 0x80 proto 3", raw=b"", kernel_made=True)
POD = Routing(
    addresses={1: (ip_interface("127.0.0.1/8"),), 2: (ip_interface("10.244.1.7/24"), ip_interface("fd10::7/64"))},
    routes={
        2: (
            RouteConfig(destination=ip_network("0.0.0.0/0"), gateway=ip_address("10.244.1.1")),
            RouteConfig(destination=ip_network("::/0"), gateway=ip_address("fe80::1"), metric=1024),
        )
    },
)


def _thing(text: str) -> Captured:
    return Captured(text=text, raw=text.encode(), kernel_made=False)


def _address(text: str) -> Captured:
    return _thing(f"{text} peer {text.partition('/')[0]} scope 0 flags 0x80")


def _route(text: str, *, proto: int = 3) -> Captured:
    to, _, rest = text.partition(" ")
    return _thing(f"{to} type 1 proto {proto} scope 0 tos 0 {rest or 'table 254'}")


def _link(
    number: int = 0, *, addresses: tuple[str, ...] = (), routes: tuple[str, ...] = (), **more: object
) -> LinkState:
    link = LinkState(
        ifindex=5 + number,
        name=f"rail{number}",
        kind="",
        parent="",
        permanent_mac="",
        mac="02:00:00:00:00:01",
        mtu=1500,
        txqlen=1000,
        alias="",
        alt_names=(),
        up=True,
        addresses=(LINK_LOCAL, *map(_address, addresses)),
        routes=tuple(map(_route, routes)),
    )
    return replace(link, **more)  # type: ignore[arg-type]  # fields of the dataclass


def _one(
    link: LinkState,
    *rules: RoutingRule,
    takes: Takes = ALL,
    given: tuple[str, ...] = (),
    pod: Routing = POD,
    lifelines: Lifelines = Lifelines(),  # noqa: B008 - a value
    mtu: int | None = None,
) -> Inherited:
    arrival = Arrival(link=link, pod_name="rdma0", takes=takes, given=tuple(map(ip_interface, given)), mtu=mtu)
    return inherit((arrival,), tuple(KnownRule(rule=it) for it in rules), pod, lifelines)[0]


def _texts(taken: tuple[Brought, ...]) -> list[str]:
    return [str(it).split(" ")[0] for it in taken]


def _from(source: str, table: int, *, priority: int = 100) -> RoutingRule:
    network = ip_network(source)
    return RoutingRule(version=network.version, priority=priority, table=table, source=network)


def test_addresses_and_routes_come_along_but_not_what_the_kernel_makes_itself() -> None:
    link = _link(addresses=("10.0.0.1/31", "fd00::2/64"), routes=("10.1.0.0/16 via 10.0.0.0 table 254",))
    connected = (_route("10.0.0.0/31 table 254", proto=2), _route("fd00::/64 metric 256 table 254", proto=2))
    found = _one(replace(link, routes=(*connected, *link.routes)))
    assert _texts(found.addresses) == ["10.0.0.1/31", "fd00::2/64"]
    assert _texts(found.things) == ["10.1.0.0/16"]
    assert (found.rules, found.routes, found.sysctls, found.left_out) == ((), (), (), ())


def test_nothing_comes_along_where_nothing_is_to() -> None:
    link = _link(addresses=("10.0.0.1/31",), routes=("10.1.0.0/16 via 10.0.0.0 table 254",))
    assert _one(link, _from("10.0.0.1/32", 7), takes=Takes()) == Inherited()


@pytest.mark.parametrize(
    ("route", "why"),
    [
        ("0.0.0.0/1 via 10.0.0.0 table 254", "it covers the pod's address 10.244.1.7"),
        ("10.244.0.0/16 via 10.0.0.0 table 254", "it covers the pod's address 10.244.1.7"),
        ("10.244.1.1/32 via 10.0.0.0 table 254", "it covers the pod's gateway 10.244.1.1"),
        ("fd10::/16 via fe80::9 metric 1024 table 254", "it covers the pod's address fd10::7"),
        ("10.96.7.0/24 via 10.0.0.0 table 254", "it covers the service range 10.96.0.0/12"),
        ("10.200.0.0/16 via 10.0.0.0 table 253", "it covers the API server 10.200.0.9"),
        ("10.201.0.0/16 via 10.0.0.0 table 254", "it covers the node's address 10.201.0.9"),
        ("10.8.0.0/16 via 10.7.0.1 table 254", "its gateway 10.7.0.1 is not reached from the addresses in the pod"),
        ("0.0.0.0/0 via 10.0.0.0 table 254", "it covers the pod's address 10.244.1.7"),
    ],
)
def test_a_route_that_would_lead_the_cluster_network_astray_stays_and_is_told(route: str, why: str) -> None:
    lifelines = Lifelines(
        node_ips=(ip_address("10.201.0.9"),),
        api_server=ip_address("10.200.0.9"),
        service_range=(ip_network("10.96.0.0/12"),),
    )
    found = _one(_link(addresses=("10.0.0.1/31",), routes=(route,)), lifelines=lifelines)
    assert found.things == ()
    assert len(found.left_out) == 1
    assert found.left_out[0].endswith(f": {why}")
    assert found.left_out[0].startswith(f"the route {route.split(' ', maxsplit=1)[0]}")


def test_an_address_whose_network_is_the_pods_comes_without_the_route_to_it() -> None:
    found = _one(_link(addresses=("10.1.2.3/8",)))
    assert [it.is_alone for it in found.addresses] == [True]
    assert found.left_out == (
        "the route to 10.0.0.0/8 of its address 10.1.2.3/8: it covers the pod's address 10.244.1.7",
    )


def test_a_table_that_only_the_netdevs_own_address_leads_to_may_cover_everything() -> None:
    link = _link(addresses=("10.0.0.1/31",), routes=("0.0.0.0/1 via 10.0.0.0 table 100",))
    found = _one(link, _from("10.0.0.1/32", 100))
    assert _texts(found.things) == ["0.0.0.0/1"]
    assert found.rules == (_from("10.0.0.1/32", 100),)
    assert found.left_out == ()


@pytest.mark.parametrize(
    "rule",
    [
        RoutingRule(version=4, priority=9, table=100),
        RoutingRule(version=4, priority=9, table=100, destination=ip_network("10.0.0.0/8")),
        RoutingRule(version=4, priority=9, table=100, iif="lo"),
        RoutingRule(version=4, priority=9, table=100, source=ip_network("10.0.0.1/32"), invert=True),
    ],
)
def test_a_table_that_the_pods_packets_come_to_may_not(rule: RoutingRule) -> None:
    routes = ("10.244.0.0/16 via 10.0.0.0 table 100", "10.9.0.0/16 via 10.0.0.0 table 100")
    found = _one(_link(addresses=("10.0.0.1/31",), routes=routes), rule)
    assert _texts(found.things) == ["10.9.0.0/16"]
    assert len(found.left_out) == 1


def test_a_rule_for_the_netdev_has_its_name_in_the_pod() -> None:
    rule = RoutingRule(version=4, priority=9, table=100, iif="rail0")
    other = RoutingRule(version=4, priority=10, table=100, iif="bond0")
    found = _one(_link(addresses=("10.0.0.1/31",), routes=("10.9.0.0/16 via 10.0.0.0 table 100",)), rule, other)
    assert found.rules == (replace(rule, iif="rdma0"),)
    assert found.left_out == (f"the rule {other}: it names the host's link bond0",)


def test_an_address_that_only_the_host_uses_stays() -> None:
    local = _thing("127.0.0.33/32 peer 127.0.0.33 scope 254 flags 0x80")
    link = _link(addresses=("10.0.0.1/31",))
    found = _one(replace(link, addresses=(*link.addresses, local)))
    assert _texts(found.addresses) == ["10.0.0.1/31"]
    assert found.left_out == ("127.0.0.33/32: only the host itself uses it (scope host)",)


def test_a_rule_for_packets_that_the_netdev_passes_on_comes_along() -> None:
    """Neither the host nor the pod has an address in its source."""
    rule = _from("10.20.30.0/24", 100)
    found = _one(_link(addresses=("10.0.0.1/31",), routes=("10.9.0.0/16 via 10.0.0.0 table 100",)), rule)
    assert (found.rules, found.left_out) == ((rule,), ())


def test_rules_that_do_not_concern_the_netdev_stay_without_a_word() -> None:
    rules = (_from("10.5.0.1/32", 200), RoutingRule(version=4, priority=32766, table=254))
    found = _one(_link(addresses=("10.0.0.1/31",)), *rules)
    assert (found.rules, found.left_out) == ((), ())


def test_a_rule_that_is_not_understood_whole_stays_and_is_told() -> None:
    arrival = Arrival(link=_link(addresses=("10.0.0.1/31",)), pod_name="rdma0", takes=ALL)
    known = KnownRule(rule=_from("10.0.0.1/32", 100), foreign="ipproto")
    (found,) = inherit((arrival,), (known,), POD, Lifelines())
    assert found.rules == ()
    assert found.left_out == ("the rule 100: from 10.0.0.1/32 lookup 100 (ipproto): it cannot be copied",)


def test_a_table_of_the_pods_own_is_not_mixed_with_the_hosts() -> None:
    routes = {2: (*POD.routes[2], RouteConfig(destination=ip_network("10.3.0.0/16"), table=100))}
    link = _link(addresses=("10.0.0.1/31",), routes=("10.9.0.0/16 via 10.0.0.0 table 100",))
    found = _one(link, _from("10.0.0.1/32", 100), pod=replace(POD, routes=routes))
    assert (found.things, found.rules) == ((), ())
    assert all(it.endswith("the pod has a table 100 of its own") for it in found.left_out)
    assert len(found.left_out) == 2


def test_a_rule_that_the_pod_has_is_not_added_and_so_never_removed() -> None:
    rule = _from("10.0.0.1/32", 254)
    found = _one(_link(addresses=("10.0.0.1/31",)), rule, pod=replace(POD, rules=(KnownRule(rule=rule),)))
    assert (found.rules, found.left_out) == ((), ())


def test_given_addresses_correct_what_comes_along() -> None:
    routes = (
        "10.1.0.0/16 via 10.0.0.0 src 10.0.0.1 table 254",
        "10.2.0.0/16 via 192.168.7.1 src 10.0.0.1 table 254",
        "10.3.0.0/16 src 10.0.0.1 table 254",
        "10.3.0.0/16 src 10.0.0.3 table 254",
    )
    found = _one(
        _link(addresses=("10.0.0.1/31", "10.0.0.3/31"), routes=routes),
        _from("10.0.0.1/32", 100),
        takes=replace(ALL, addresses=False),
        given=("192.168.7.2/24",),
    )
    assert found.addresses == ()
    assert [(str(it).split(" ")[0], it.is_sourceless) for it in found.things] == [
        ("10.3.0.0/16", True),
        ("10.2.0.0/16", True),
    ]
    assert [it.split(": ")[-1] for it in found.left_out] == [
        "the netdev has no address in its source in the pod",
        "its gateway 10.0.0.0 is not reached from the addresses in the pod",
    ]


@pytest.mark.parametrize(
    ("pod", "mtu", "why"),
    [
        (replace(POD, has_ipv6=False), None, "the pod has no IPv6"),
        (POD, 1000, "an MTU of 1000 is too small for IPv6"),
    ],
)
def test_ipv6_stays_where_the_pod_cannot_have_it(pod: Routing, mtu: int | None, why: str) -> None:
    neighbours = (_thing("neighbour fd00::9 lladdr 02:00:00:00:00:09"), _thing("neighbour 10.0.0.0 lladdr 02::09"))
    link = _link(addresses=("10.0.0.1/31", "fd00::2/64"), routes=("fd01::/64 via fd00::1 metric 7 table 254",))
    found = _one(replace(link, neighbours=neighbours), pod=pod, mtu=mtu)
    assert _texts(found.addresses) == ["10.0.0.1/31"]
    assert [it.thing for it in found.things] == [neighbours[1]]
    assert found.left_out == (f"fd00::2/64: {why}", f"the route fd01::/64 via fd00::1 metric 7: {why}")


def test_the_routes_that_others_lead_through_come_first() -> None:
    routes = (
        "10.1.0.0/16 via 10.5.0.1 table 254",
        "10.5.0.1/32 table 254",
        "10.2.0.0/16 via 10.99.0.1 onlink table 254",
    )
    found = _one(_link(addresses=("10.0.0.1/32",), routes=routes))
    assert _texts(found.things)[0] == "10.5.0.1"
    assert found.left_out == ()


def _several(*links: LinkState, takes: Takes = ALL, rules: tuple[RoutingRule, ...] = ()) -> tuple[Inherited, ...]:
    arrivals = [Arrival(link=it, pod_name=f"rdma{number}", takes=takes) for number, it in enumerate(links)]
    return inherit(arrivals, tuple(KnownRule(rule=it) for it in rules), POD, Lifelines())


def test_each_of_several_netdevs_has_a_table_and_a_rule_of_its_own() -> None:
    one = _link(0, addresses=("10.0.0.1/24", "fd00::1/64"), routes=("10.1.0.0/16 via 10.0.0.9 metric 5 table 254",))
    two = _link(1, addresses=("10.0.0.2/24",), routes=("10.1.0.0/16 via 10.0.0.9 metric 6 table 254",))
    first, second = _several(one, two)
    assert first.rules == (
        _from("10.0.0.1/32", FIRST_OWN_TABLE, priority=OWN_PRIORITY),
        _from("fd00::1/128", FIRST_OWN_TABLE, priority=OWN_PRIORITY),
    )
    assert second.rules == (_from("10.0.0.2/32", FIRST_OWN_TABLE + 1, priority=OWN_PRIORITY),)
    assert set(first.routes) == {
        RouteConfig(destination=ip_network("10.0.0.0/24"), source=ip_address("10.0.0.1"), table=FIRST_OWN_TABLE),
        RouteConfig(destination=ip_network("fd00::/64"), table=FIRST_OWN_TABLE),
    }
    assert [it.table for it in second.things] == [0, FIRST_OWN_TABLE + 1]
    assert first.sysctls == second.sysctls == SEVERAL_SYSCTLS


def test_the_hosts_own_rule_for_an_address_comes_before_ours() -> None:
    one = _link(0, addresses=("10.0.0.1/24",), routes=("10.1.0.0/16 via 10.0.0.9 table 100",))
    first, _ = _several(one, _link(1, addresses=("10.0.0.2/24",)), rules=(_from("10.0.0.1/32", 100, priority=32765),))
    own = _from("10.0.0.1/32", FIRST_OWN_TABLE, priority=OWN_PRIORITY)
    assert first.rules == (_from("10.0.0.1/32", 100, priority=32765), own)


def test_a_netdev_without_an_address_makes_no_second() -> None:
    first, second = _several(_link(0, addresses=("10.0.0.1/24",)), _link(1))
    assert (first.rules, first.sysctls, second.sysctls) == ((), (), ())


@pytest.mark.parametrize("takes", [replace(ALL, routes=False), replace(ALL, rules=False)])
def test_who_writes_routes_or_rules_gets_no_tables(takes: Takes) -> None:
    found = _several(_link(0, addresses=("10.0.0.1/24",)), _link(1, addresses=("10.0.0.2/24",)), takes=takes)
    assert [(it.rules, it.routes, it.sysctls) for it in found] == [((), (), ())] * 2


def test_where_the_request_switches_ipv6_off_no_ipv6_comes_along() -> None:
    link = _link(addresses=("10.0.0.1/24", "fd00::1/64"))
    (found,) = inherit((Arrival(link=link, pod_name="", takes=ALL, has_ipv6=False),), (), POD, Lifelines())
    assert _texts(found.addresses) == ["10.0.0.1/24"]
    assert found.left_out == ("fd00::1/64: the request switches IPv6 off",)


def test_tables_are_such_as_nobody_has() -> None:
    rule = KnownRule(rule=RoutingRule(version=4, priority=1, table=FIRST_OWN_TABLE))
    arrivals = [Arrival(link=_link(it, addresses=(f"10.0.{it}.1/24",)), pod_name="", takes=ALL) for it in range(2)]
    found = inherit(arrivals, (), replace(POD, rules=(rule,)), Lifelines())
    assert [it.rules[0].table for it in found] == [FIRST_OWN_TABLE + 1, FIRST_OWN_TABLE + 2]


def test_beside_a_link_with_a_default_route_others_of_the_pod_do_not_count() -> None:
    """They are somebody's second network."""
    pod = replace(POD, addresses={**POD.addresses, 3: (ip_interface("10.9.0.7/24"),)})
    found = _one(_link(addresses=("10.0.0.1/31",), routes=("10.9.0.0/16 via 10.0.0.0 table 254",)), pod=pod)
    assert (_texts(found.things), found.left_out) == (["10.9.0.0/16"], ())


def test_without_a_default_route_every_address_of_the_pod_counts() -> None:
    pod = Routing(addresses={2: (ip_interface("10.9.0.7/24"),)})
    found = _one(_link(addresses=("10.0.0.1/31",), routes=("10.9.0.0/16 via 10.0.0.0 table 254",)), pod=pod)
    assert found.things == ()


EARLIER = replace(
    POD,
    addresses={**POD.addresses, 7: (ip_interface("10.0.0.1/24"),)},
    routes={**POD.routes, 7: (RouteConfig(destination=ip_network("10.1.0.0/16"), gateway=ip_address("10.0.0.9")),)},
    netdevs=frozenset({7}),
)


def test_a_netdev_beside_one_that_came_earlier_has_a_table_of_its_own() -> None:
    """Also with the route that the first one has in the table main."""
    link = _link(addresses=("10.0.0.2/24",), routes=("10.1.0.0/16 via 10.0.0.9 table 254",))
    found = _one(link, pod=EARLIER)
    assert found.rules == (_from("10.0.0.2/32", FIRST_OWN_TABLE, priority=OWN_PRIORITY),)
    assert found.sysctls == SEVERAL_SYSCTLS
    assert [(it.table, it.is_alone) for it in (*found.addresses, *found.things)] == [
        (0, False),
        (FIRST_OWN_TABLE, False),
    ]
    assert found.left_out == (
        "the route 10.1.0.0/16 via 10.0.0.9: the pod has such a route",
        "a table for 10.0.0.1: the pod had that address before, on a netdev that came alone",
    )


def test_a_netdev_that_came_earlier_with_others_is_not_told_of() -> None:
    own = KnownRule(rule=_from("10.0.0.1/32", FIRST_OWN_TABLE, priority=OWN_PRIORITY))
    found = _one(_link(addresses=("10.0.0.2/24",)), pod=replace(EARLIER, rules=(own,)))
    assert found.rules == (_from("10.0.0.2/32", FIRST_OWN_TABLE + 1, priority=OWN_PRIORITY),)
    assert found.left_out == ()


def test_a_netdev_that_came_earlier_is_no_part_of_the_cluster_network() -> None:
    """Neither in a pod without a default route, nor with one of its own."""
    default = RouteConfig(destination=ip_network("0.0.0.0/0"), table=101)
    for pod in (replace(EARLIER, routes={}), replace(EARLIER, routes={7: (default,)})):
        found = _one(_link(addresses=("10.0.0.2/24",)), pod=pod)
        assert [it.is_alone for it in found.addresses] == [False]
        blocked = _one(_link(addresses=("10.0.0.2/24",), routes=("10.244.0.0/16 via 10.0.0.9 table 254",)), pod=pod)
        assert blocked.things == ()


def test_what_is_not_ip_stays_and_is_told() -> None:
    label = _thing("00064100/20 type 1 proto 4 scope 0 tos 0")
    found = _one(replace(_link(addresses=("10.0.0.1/31",)), routes=(label,)))
    assert (found.things, found.left_out) == ((), (f"{label.words}: it is not of IP",))


LABEL = _thing("00064100/20 type 1 proto 4 scope 0 tos 0")
"""Of MPLS."""


def test_an_address_that_is_not_of_ip_stays_and_is_told_where_addresses_come_along() -> None:
    link = _link(addresses=("10.0.0.1/31",))
    link = replace(link, addresses=(LABEL, *link.addresses))
    found = _one(link)
    assert (_texts(found.addresses), found.left_out) == (["10.0.0.1/31"], (f"{LABEL.words}: it is not of IP",))
    assert _one(link, takes=Takes()) == Inherited()


def test_a_rule_that_is_for_several_netdevs_comes_along_once() -> None:
    rule = _from("10.0.0.0/24", 100)
    links = (
        _link(
            number, addresses=(f"10.0.0.{number + 1}/24",), routes=(f"10.{number + 1}.0.0/16 via 10.0.0.9 table 100",)
        )
        for number in range(2)
    )
    first, second = _several(*links, rules=(rule,))
    assert (rule in first.rules, rule in second.rules) == (True, False)


def test_an_address_without_the_route_to_its_network_reaches_no_gateway() -> None:
    found = _one(_link(addresses=("10.1.2.3/8",), routes=("10.5.0.0/16 via 10.9.9.9 table 254",)))
    assert found.things == ()
    assert found.left_out[-1].endswith("its gateway 10.9.9.9 is not reached from the addresses in the pod")


def test_in_its_own_table_a_netdev_has_the_networks_that_it_reaches_and_nothing_of_its_link_alone() -> None:
    one = _link(0, addresses=("10.0.0.1/24", "169.254.7.1/16", "10.1.2.3/8", "10.0.9.1/32"))
    first, _ = _several(one, _link(1, addresses=("10.0.0.2/24",)))
    assert [str(it.source) for it in first.rules] == ["10.0.0.1/32", "10.1.2.3/32", "10.0.9.1/32"]
    assert [str(it.destination) for it in first.routes] == ["10.0.0.0/24"]


@pytest.mark.parametrize(("routes", "last"), [(20, "route 10.20.0.0/16"), (21, "and 1 more")])
def test_twenty_things_that_stay_are_named(routes: int, last: str) -> None:
    lost = tuple(f"10.{number}.0.0/16 via 172.16.0.1 table 254" for number in range(1, routes + 1))
    told = _one(_link(addresses=("10.0.0.1/31",), routes=lost)).left_out
    assert len(told) == routes
    assert last in told[-1]


def test_the_least_mtu_of_ipv6_has_ipv6() -> None:
    found = _one(_link(addresses=("fd00::2/64",)), mtu=1280)
    assert (_texts(found.addresses), found.left_out) == (["fd00::2/64"], ())


def test_a_rule_from_the_whole_network_of_an_address_concerns_it_and_one_from_a_larger_does_not() -> None:
    rules = (_from("10.0.0.0/24", 300), _from("10.0.0.0/23", 300))
    assert _one(_link(addresses=("10.0.0.1/24",)), *rules).rules == rules[:1]


@pytest.mark.parametrize(
    "rule",
    [
        RoutingRule(version=4, priority=9, table=100, iif="rail0"),
        RoutingRule(version=4, priority=9, table=100, fwmark=7),
        RoutingRule(version=4, priority=9, table=100, source=ip_network("10.0.0.0/31")),
        RoutingRule(version=4, priority=9, table=100, destination=ip_network("10.8.0.0/16")),
    ],
)
def test_a_table_that_no_packet_of_the_cluster_network_comes_to_may_cover_everything(rule: RoutingRule) -> None:
    found = _one(_link(addresses=("10.0.0.1/31",), routes=("10.244.0.0/16 via 10.0.0.0 table 100",)), rule)
    assert (_texts(found.things), found.left_out) == (["10.244.0.0/16"], ())


def test_a_netdev_that_came_earlier_with_an_address_of_its_link_alone_is_none_beside_which_another_is() -> None:
    pod = replace(EARLIER, addresses={**POD.addresses, 7: (ip_interface("fe80::7/64"),)})
    assert _one(_link(addresses=("10.0.0.2/24",)), pod=pod).rules == ()


@pytest.mark.parametrize(
    "rule",
    [_from("10.0.0.1/32", FIRST_OWN_TABLE), _from("10.0.0.1/32", FIRST_OWN_TABLE - 1, priority=OWN_PRIORITY)],
    ids=["of another priority", "to another table"],
)
def test_somebody_elses_rule_for_the_address_of_an_earlier_netdev_is_no_table_of_its_own(rule: RoutingRule) -> None:
    found = _one(_link(addresses=("10.0.0.2/24",)), pod=replace(EARLIER, rules=(KnownRule(rule=rule),)))
    assert found.left_out == ("a table for 10.0.0.1: the pod had that address before, on a netdev that came alone",)


def test_only_routes_over_the_netdev_that_packets_come_to_lead_away() -> None:
    cluster = ip_network("10.244.0.0/16")
    main, other = (RouteConfig(destination=cluster, gateway=ip_address("10.0.0.9"), table=it) for it in (254, 100))
    routes = (main, other, RouteConfig(destination=cluster, type=RouteType.BLACKHOLE))
    told = "the route 10.244.0.0/16 via 10.0.0.9{} covers the pod's address 10.244.1.7, the pod's gateway 10.244.1.1"
    assert leading_away(routes, POD, Lifelines()) == (told.format(""),)
    assert leading_away(routes, POD, Lifelines(), has_rules=True) == (told.format(""), told.format(" table 100"))


def test_routes_that_differ_in_their_source_alone_both_come_along_with_their_sources() -> None:
    routes = ("10.3.0.0/16 src 10.0.0.1 table 254", "10.3.0.0/16 src 10.0.0.3 table 254")
    found = _one(_link(addresses=("10.0.0.1/31", "10.0.0.3/31"), routes=routes))
    sources = [it.thing.text.partition(" src ")[2].split()[0] for it in found.things]
    assert (sources, [it.is_sourceless for it in found.things]) == (["10.0.0.1", "10.0.0.3"], [False, False])


def test_a_gateway_of_the_link_alone_is_the_clusters_in_ipv4_and_none_in_ipv6() -> None:
    """Calico's is 169.254.1.1; that of IPv6 is the router's on each link."""
    default = RouteConfig(destination=ip_network("0.0.0.0/0"), gateway=ip_address("169.254.1.1"))
    addresses = {2: (*POD.addresses[2], ip_interface("fe80::7/64"))}
    pod = replace(POD, addresses=addresses, routes={2: (default, *POD.routes[2][1:])})
    routes = ("169.254.0.0/16 via 10.0.0.0 table 254", "fe80::/64 via fd00::9 table 254")
    found = _one(_link(addresses=("10.0.0.1/31", "fd00::1/64"), routes=routes), pod=pod)
    assert _texts(found.things) == ["fe80::/64"]
    (told,) = found.left_out
    assert told.endswith("it covers the pod's gateway 169.254.1.1")
