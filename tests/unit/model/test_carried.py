"""What the texts of captured things say, as the kernel's adapter writes them; the contract suite holds both kernels to
these words."""

from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.model.carried import CarriedAddress, CarriedRoute, carried_address, carried_route, neighbour_version
from nri_rdma.model.link import Captured
from nri_rdma.model.network import RouteConfig


def _thing(text: str) -> Captured:
    return Captured(text=text, raw=b"", kernel_made=False)


@pytest.mark.parametrize(
    ("text", "own", "network", "has_no_route"),
    [
        ("10.0.0.1/24 peer 10.0.0.1 scope 0 flags 0x80 broadcast 10.0.0.255 label a", "10.0.0.1/24", "10.0.0.0/24", 0),
        ("10.0.3.1/32 peer 10.0.3.2 scope 253 flags 0x80", "10.0.3.1/32", "10.0.3.2/32", 0),
        ("10.0.2.1/24 peer 10.0.2.1 scope 0 flags 0x280", "10.0.2.1/24", "10.0.2.0/24", 1),
        ("fd00::1/64 peer fd00::1 scope 0 flags 0x80 proto 3", "fd00::1/64", "fd00::/64", 0),
    ],
)
def test_an_address_says_its_network_and_whether_a_route_leads_there(
    text: str, own: str, network: str, has_no_route: int
) -> None:
    expected = CarriedAddress(ip_interface(own), ip_network(network), bool(has_no_route))
    assert carried_address(_thing(text)) == expected


@pytest.mark.parametrize(("scope", "is_hosts"), [("254", True), ("253", False), ("0", False)])
def test_an_address_says_whether_only_the_host_uses_it(scope: str, is_hosts: bool) -> None:
    found = carried_address(_thing(f"10.0.0.1/24 peer 10.0.0.1 scope {scope} flags 0x80"))
    assert found is not None
    assert found.is_hosts is is_hosts


def _said(text: str) -> CarriedRoute:
    said = carried_route(_thing(text))
    assert said is not None
    return said


def test_a_route_says_where_it_leads() -> None:
    said = _said("10.1.0.0/16 type 1 proto 3 scope 0 tos 0 via 10.0.0.9 src 10.0.0.1 metric 6 table 100")
    assert said.route == RouteConfig(
        destination=ip_network("10.1.0.0/16"),
        gateway=ip_address("10.0.0.9"),
        source=ip_address("10.0.0.1"),
        metric=6,
        table=100,
    )
    assert (said.is_onlink, said.is_kernels) == (False, False)


def test_an_unknown_attribute_does_not_hide_the_rest() -> None:
    said = _said("fd00::/64 type 1 proto 2 scope 0 tos 0 onlink attribute-8 0800 metric 256 table 254")
    assert (said.route.metric, said.route.gateway, said.is_onlink, said.is_kernels) == (256, None, True, True)


@pytest.mark.parametrize(
    ("text", "version"), [("neighbour fd00::9 lladdr 02:00", 6), ("neighbour 10.0.0.9 lladdr 02:00", 4), ("n None", 0)]
)
def test_a_neighbour_says_its_version(text: str, version: int) -> None:
    assert neighbour_version(_thing(text)) == version


def test_what_is_not_ip_says_nothing() -> None:
    assert carried_route(_thing("00064100/20 type 1 proto 4 scope 0 tos 0")) is None
    assert carried_address(_thing("0a0b/8 peer None scope 0 flags 0x80")) is None
