"""Routes, rules and neighbours are described as `ip` shows them."""

from ipaddress import ip_address, ip_network

import pytest

from nri_rdma.model.network import NeighbourConfig, NextHop, RouteConfig, RouteType, RoutingRule


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (RouteConfig(destination=ip_network("10.0.0.0/8")), "10.0.0.0/8"),
        (
            RouteConfig(
                destination=ip_network("10.0.0.0/8"),
                gateway=ip_address("10.1.0.1"),
                source=ip_address("10.1.0.2"),
                metric=5,
                table=100,
                mtu=1400,
                advmss=1300,
                onlink=True,
            ),
            "10.0.0.0/8 via 10.1.0.1 src 10.1.0.2 metric 5 table 100 mtu 1400 advmss 1300 onlink",
        ),
        (
            RouteConfig(destination=ip_network("::/0"), multipath=(NextHop(gateway=ip_address("fd00::1"), weight=3),)),
            "::/0 nexthop fd00::1 weight 3",
        ),
        (RouteConfig(destination=ip_network("::/0"), type=RouteType.PROHIBIT), "prohibit ::/0"),
        (RoutingRule(priority=5, table=7), "5: from all lookup 7"),
        (
            RoutingRule(
                priority=5,
                table=7,
                source=ip_network("10.0.0.0/8"),
                destination=ip_network("10.9.0.0/16"),
                fwmark=16,
                fwmask=240,
                iif="eth0",
                oif="rdma0",
                invert=True,
                suppress_prefix_length=0,
            ),
            "5: not from 10.0.0.0/8 to 10.9.0.0/16 fwmark 0x10/0xf0 iif eth0 oif rdma0 lookup 7"
            " suppress_prefixlength 0",
        ),
        (
            NeighbourConfig(destination=ip_address("fd00::9"), mac="02:00:00:00:00:01"),
            "fd00::9 lladdr 02:00:00:00:00:01",
        ),
    ],
)
def test_each_is_described_as_ip_shows_it(item: object, words: str) -> None:
    assert str(item) == words


def test_only_a_unicast_route_goes_with_its_netdev() -> None:
    destination = ip_network("10.0.0.0/8")
    over = {kind for kind in RouteType if RouteConfig(destination=destination, type=kind).is_over_netdev}
    assert over == {RouteType.UNICAST}


def test_a_mark_without_a_mask_is_one_condition() -> None:
    assert RoutingRule(priority=1, table=2).selectors == 0
    assert RoutingRule(priority=1, table=2, fwmark=0, fwmask=None, iif="a", oif="b").selectors == 3
