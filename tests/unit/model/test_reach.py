"""Which netdev a route or a neighbour is for."""

from __future__ import annotations

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.model.network import NextHop, RouteConfig
from nri_rdma.model.reach import Reach, request_of_one
from tests.unit.text.asking import requests

TWO = (
    (ip_interface("10.0.0.2/24"), ip_interface("fd00::2/64")),
    (ip_interface("10.0.1.2/24"), ip_interface("10.0.0.130/25")),
)


def route(*, gateway: str = "", source: str = "", via: tuple[str, ...] = (), onlink: bool = False) -> RouteConfig:
    return RouteConfig(
        destination=ip_network("0.0.0.0/0"),
        gateway=ip_address(gateway) if gateway else None,
        source=ip_address(source) if source else None,
        onlink=onlink,
        multipath=tuple(NextHop(gateway=ip_address(it)) for it in via),
    )


def test_a_netdev_reaches_what_is_in_its_networks_and_has_its_addresses() -> None:
    assert Reach(TWO).reaching(ip_address("10.0.0.1")) == {0}
    assert Reach(TWO).reaching(ip_address("10.0.0.200")) == {0, 1}
    assert Reach(TWO).reaching(ip_address("fd00::1")) == {0}
    assert Reach(TWO).reaching(ip_address("10.9.0.1")) == set()
    assert Reach(TWO).having(ip_address("10.0.1.2")) == {1}


@pytest.mark.parametrize(
    ("one", "position"),
    [
        (route(gateway="10.0.0.1"), 0),
        (route(gateway="10.0.1.1"), 1),
        (route(gateway="10.0.0.200"), None),
        (route(gateway="10.0.0.200", source="10.0.0.130"), 1),
        (route(gateway="10.9.0.1"), None),
        (route(gateway="10.9.0.1", onlink=True), None),
        (route(gateway="10.9.0.1", onlink=True, source="10.0.1.2"), 1),
        (route(source="10.0.0.2"), 0),
        (route(), None),
        (route(via=("10.0.1.1", "10.0.1.3")), 1),
        (route(via=("10.0.1.1", "10.0.0.1")), None),
    ],
)
def test_a_route_is_for_the_one_netdev_that_reaches_its_gateways(one: RouteConfig, position: int | None) -> None:
    assert Reach(TWO).netdev_of_route(one) == position


def test_a_single_netdev_has_every_route_and_every_neighbour() -> None:
    assert Reach(TWO[:1]).netdev_of_route(route(gateway="10.9.0.1")) == 0
    assert Reach(TWO[:1]).netdev_of_neighbour(ip_address("10.9.0.1")) == 0
    assert Reach(TWO).netdev_of_neighbour(ip_address("10.0.1.9")) == 1
    assert Reach(TWO).netdev_of_neighbour(ip_address("10.0.0.200")) is None


TEXT = """
count: 2
interface: {addresses: [[10.0.0.2/24], [10.0.1.2/24]], hardwareAddr: ['02:00:00:00:00:01', '02:00:00:00:00:02']}
routes:
- {destination: 10.8.0.0/16, gateway: 10.0.0.1}
- {destination: 10.9.0.0/16, gateway: 10.0.1.1}
- {destination: 10.7.0.0/16, type: blackhole}
rules: [{table: 100}]
neighbors: [{destination: 10.0.1.1, hardwareAddr: '02:00:00:00:00:09'}]
"""


def test_the_request_of_one_device_has_what_is_that_devices() -> None:
    (request,) = requests(TEXT)
    first, second = (request_of_one(request, number) for number in (0, 1))
    assert (first.count, first.interface.macs, second.interface.macs) == (
        1,
        ("02:00:00:00:00:01",),
        ("02:00:00:00:00:02",),
    )
    assert [str(it.destination) for it in first.routes] == ["10.8.0.0/16", "10.7.0.0/16"]
    assert [str(it.destination) for it in second.routes] == ["10.9.0.0/16"]
    assert (len(first.rules), len(second.rules)) == (1, 0)
    assert (len(first.neighbours), len(second.neighbours)) == (0, 1)
