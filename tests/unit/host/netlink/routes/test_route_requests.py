"""Requests of routes, rules and neighbours are bytes; what a kernel makes of them is for the contract suite."""

from ipaddress import ip_address, ip_network

import pytest

from nri_rdma.attach.ops import AddNeighbour, AddRejectRoute, AddRoute, AddRule, RemoveRejectRoute, RemoveRule
from nri_rdma.host.netlink.routes.route_requests import (
    PROTOCOL,
    add_neighbour_request,
    add_reject_request,
    add_route_request,
    add_rule_request,
    remove_reject_request,
    remove_rule_request,
)
from nri_rdma.model.network import NeighbourConfig, RouteConfig, RouteType, RoutingRule
from nri_rdma.wire.netlink import read_attributes

ROUTE = RouteConfig(destination=ip_network("10.0.0.0/8"), gateway=ip_address("10.1.0.1"), table=4711)
NOWHERE = RouteConfig(destination=ip_network("10.0.0.0/8"), type=RouteType.BLACKHOLE)
RULE = RoutingRule(priority=5, table=7, version=4)


def test_a_route_names_its_link_and_a_table_of_any_number() -> None:
    request = add_route_request(7, AddRoute(route=ROUTE))
    told = dict(read_attributes(request.body[12:]))
    assert (told[4], told[5], told[15]) == (b"\x07\0\0\0", b"\x0a\x01\0\x01", (4711).to_bytes(4, "little"))
    assert request.body[4] == 252  # RT_TABLE_COMPAT: the number does not fit there


@pytest.mark.parametrize("table", [1, 254, 255])
def test_a_small_number_of_a_table_is_also_in_the_header(table: int) -> None:
    rule = RoutingRule(priority=5, table=table, version=4)
    assert add_rule_request(AddRule(rule=rule)).body[4] == table


def test_a_route_to_nowhere_names_no_link() -> None:
    body = add_reject_request(AddRejectRoute(route=NOWHERE)).body
    assert 4 not in dict(read_attributes(body[12:]))


def test_what_is_added_is_removed_by_the_same_words_and_carries_our_number() -> None:
    added, removed = add_rule_request(AddRule(rule=RULE)), remove_rule_request(RemoveRule(rule=RULE))
    assert (added.body, added.kind + 1) == (removed.body, removed.kind)
    assert dict(read_attributes(added.body[12:]))[21] == bytes([PROTOCOL])
    added, removed = (
        add_reject_request(AddRejectRoute(route=NOWHERE)),
        remove_reject_request(RemoveRejectRoute(route=NOWHERE)),
    )
    assert (added.body, added.kind + 1) == (removed.body, removed.kind)
    assert added.body[5] == PROTOCOL


def test_only_what_is_there_already_or_gone_already_is_tolerated() -> None:
    assert add_route_request(7, AddRoute(route=ROUTE)).tolerate == frozenset()
    assert add_rule_request(AddRule(rule=RULE)).tolerate == frozenset()
    assert remove_rule_request(RemoveRule(rule=RULE)).tolerate == {2}  # ENOENT
    assert remove_reject_request(RemoveRejectRoute(route=NOWHERE)).tolerate == {3}  # ESRCH


def test_a_neighbour_is_permanent() -> None:
    neighbour = NeighbourConfig(destination=ip_address("fd00::9"), mac="02:00:00:00:00:01")
    request = add_neighbour_request(7, AddNeighbour(neighbour=neighbour))
    assert request.body[:10] == b"\x0a\0\0\0\x07\0\0\0\x80\0"
