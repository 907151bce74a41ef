"""Each netdev of a request gets its part of what the request says, in the order that the kernel needs."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_interface

import pytest

from nri_rdma.attach.configuration import (
    configs_of,
    ops_after_up,
    ops_before_addresses,
    refuse_unfit,
    with_features_of,
)
from nri_rdma.attach.ops import (
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    JoinVrf,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
)
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.link import LinkState, features_text
from nri_rdma.model.network import NetworkConfig, VrfConfig
from nri_rdma.model.request import DeviceRequest
from tests.fakes.kernel import FakeKernel
from tests.rig.linkops import capture
from tests.unit.attach.rails import rail, rail_world
from tests.unit.text.asking import requests


def asked(text: str) -> DeviceRequest:
    (request,) = requests(text)
    return request


def described(config: NetworkConfig) -> list[str]:
    return [op.describe() for op in ops_after_up(config)]


def test_a_request_that_says_nothing_takes_no_operation() -> None:
    config = configs_of(asked("{interface: {mtu: 9000, addresses: [10.0.0.2/24]}}"), 1)[0]
    assert config == NetworkConfig()
    assert (ops_before_addresses(config), ops_after_up(config)) == ((), ())


def test_routes_on_the_link_come_before_those_behind_a_gateway_and_the_rest_keeps_its_order() -> None:
    text = """
routes:
- {destination: 10.9.0.0/16, gateway: 10.1.0.1}
- {destination: 10.8.0.0/16, gateway: 10.1.0.1}
- {destination: 10.1.0.0/24, scope: 253}
rules: [{table: 100, source: 10.0.0.0/8}, {table: 100, priority: 5}]
neighbors: [{destination: 10.1.0.1, hardwareAddr: '02:00:00:00:00:01'}]
"""
    config = configs_of(asked(text), 1)[0]
    assert described(config) == [
        "add neighbour 10.1.0.1 lladdr 02:00:00:00:00:01",
        "add route 10.1.0.0/24",
        "add route 10.9.0.0/16 via 10.1.0.1",
        "add route 10.8.0.0/16 via 10.1.0.1",
        "add IPv4 rule 0: from 10.0.0.0/8 lookup 100",
        "add IPv4 rule 5: from all lookup 100",
        "add IPv6 rule 5: from all lookup 100",
    ]
    kinds = [type(op) for op in ops_after_up(config)]
    assert kinds == [AddNeighbour, AddRoute, AddRoute, AddRoute, AddRule, AddRule, AddRule]


TWO = """
count: 2
interface: {addresses: [[10.0.0.2/24], [10.0.1.2/24]], hardwareAddr: ['02:00:00:00:00:01', '02:00:00:00:00:02']}
routes:
- {destination: 10.9.0.0/16, gateway: 10.0.0.1}
- {destination: 10.8.0.0/16, gateway: 10.0.1.1}
- {destination: 10.7.0.0/16, type: unreachable}
rules: [{table: 100, source: 10.0.0.0/8}]
neighbors: [{destination: 10.0.1.1, hardwareAddr: '02:00:00:00:00:09'}]
"""


def test_each_of_several_netdevs_has_its_own_and_the_first_has_what_is_the_namespaces() -> None:
    request = asked(TWO)
    assert described(configs_of(request, 2)[0]) == [
        "add route unreachable 10.7.0.0/16",
        "add route 10.9.0.0/16 via 10.0.0.1",
        "add IPv4 rule 0: from 10.0.0.0/8 lookup 100",
    ]
    assert isinstance(ops_after_up(configs_of(request, 2)[0])[0], AddRejectRoute)
    assert described(configs_of(request, 2)[1]) == [
        "add neighbour 10.0.1.1 lladdr 02:00:00:00:00:09",
        "add route 10.8.0.0/16 via 10.0.1.1",
    ]
    assert [configs_of(request, 2)[number].mac for number in (0, 1)] == ["02:00:00:00:00:01", "02:00:00:00:00:02"]


def test_a_route_that_could_be_over_several_netdevs_is_over_none() -> None:
    request = asked("{interface: {addresses: [10.0.0.2/24]}, routes: [{destination: 10.0.0.0/24, scope: 253}]}")
    for addresses in ((), ((ip_interface("10.0.0.2/24"),), (ip_interface("10.0.1.2/24"),))):
        several = replace(request, count=2, interface=replace(request.interface, addresses=addresses))
        assert [config.routes for config in configs_of(several, 2)] == [(), ()]


@pytest.mark.parametrize(
    ("route", "is_added"),
    [
        ("{destination: 10.0.0.0/24, scope: 253}", False),
        ("{destination: 10.0.0.0/24, scope: 253, source: 10.0.0.2}", False),
        ("{destination: 10.0.0.0/24, scope: 253, metric: 5}", True),
        ("{destination: 10.0.0.0/24, scope: 253, table: 100}", True),
        ("{destination: 10.0.0.0/24, scope: 253, mtu: 1400}", True),
        ("{destination: 10.0.0.0/25, scope: 253}", True),
        ("{destination: 10.0.0.0/24, gateway: 10.0.0.1}", True),
        ("{destination: 'fd00::/64', scope: 253}", False),
    ],
)
def test_the_route_that_the_kernel_adds_with_an_address_is_not_added_again(route: str, is_added: bool) -> None:
    request = asked(f"{{interface: {{addresses: [10.0.0.2/24, 'fd00::2/64']}}, routes: [{route}]}}")
    assert bool(configs_of(request, 1)[0].routes) is is_added


def test_routes_of_a_vrf_are_in_its_table() -> None:
    text = """
interface: {addresses: [10.0.0.2/24], vrf: {name: red, table: 100}}
routes: [{destination: 10.0.0.0/24, scope: 253}, {destination: 0.0.0.0/0, gateway: 10.0.0.1}]
"""
    config = configs_of(asked(text), 1)[0]
    assert described(config) == ["add route 0.0.0.0/0 via 10.0.0.1 table 100"]
    assert ops_before_addresses(config) == (JoinVrf(vrf=VrfConfig(name="red", table=100)),)


def test_the_netdevs_own_settings_come_before_its_addresses() -> None:
    text = """
interface:
  hardwareAddr: '02:00:00:00:00:01'
  gsoMaxSize: 65536
  groIPv4MaxSize: 65537
  disableEbpfPrograms: true
  forwarding: true
  arpIgnore: 1
  arpAnnounce: 2
  enableIPv6: true
ethtool: {features: {rx-gro: false}, privateFlags: {legacy-rx: false}}
"""
    assert ops_before_addresses(configs_of(asked(text), 1)[0]) == (
        SetLink(mac="02:00:00:00:00:01"),
        SetSettings(settings=(("gso_max_size", 65536), ("gro_ipv4_max_size", 65537))),
        SetFeatures(features=(("rx-gro", False),)),
        SetPrivateFlags(flags=(("legacy-rx", False),)),
        DetachTcx(),
        SetSysctl(key="ipv6/conf/disable_ipv6", value="0"),
        SetSysctl(key="ipv4/conf/arp_ignore", value="1"),
        SetSysctl(key="ipv4/conf/arp_announce", value="2"),
        SetSysctl(key="ipv4/conf/forwarding", value="1"),
        SetSysctl(key="ipv6/conf/forwarding", value="1"),
    )


def test_a_netdev_without_ipv6_does_not_forward_it() -> None:
    config = configs_of(asked("{interface: {forwarding: true, enableIPv6: false}}"), 1)[0]
    assert config.sysctls == (("ipv6/conf/disable_ipv6", "1"), ("ipv4/conf/forwarding", "1"))


def _captured() -> LinkState:
    kernel = FakeKernel(world := rail_world())
    return capture(kernel, kernel.host, rail(world).ifindex)


LINK = replace(
    _captured(),
    max_mtu=9000,
    settings=(("gso_max_size", 65536), ("gro_max_size", 65536)),
    features=features_text(
        [("tx-tcp-segmentation", True), ("tx-tcp6-segmentation", True), ("rx-gro", True), ("tx-checksum-ipv4", True)]
    ),
)


@pytest.mark.parametrize(
    ("written", "features"),
    [
        ("tx-tcp-segmentation", ["tx-tcp-segmentation"]),
        ("tcp-segmentation-offload", ["tx-tcp-segmentation", "tx-tcp6-segmentation"]),
        ("tso", ["tx-tcp-segmentation", "tx-tcp6-segmentation"]),
        ("generic-receive-offload", ["rx-gro"]),
        ("tx-checksumming", ["tx-checksum-ipv4"]),
    ],
)
def test_a_feature_has_the_name_of_the_kernel_or_a_word_of_ethtool(written: str, features: list[str]) -> None:
    config = with_features_of("mlx5_0", LINK, NetworkConfig(features=((written, False),)))
    assert config.features == tuple((name, False) for name in features)


@pytest.mark.parametrize(
    ("written", "hint"), [("rx-grro", "write rx-gro; "), ("large-receive-offload", "ethtool -k"), ("*", "ethtool -k")]
)
def test_a_feature_that_the_link_cannot_change_is_refused(written: str, hint: str) -> None:
    with pytest.raises(PlacementError, match="cannot change the feature") as refused:
        with_features_of("mlx5_0", LINK, NetworkConfig(features=((written, True),)))
    assert refused.value.code is ErrorCode.INTERFACE_UNFIT
    assert hint in refused.value.hint


def test_a_feature_that_is_fixed_as_it_is_asked_for_is_no_error() -> None:
    link = replace(LINK, fixed_features="rx-lro off\nloopback off\nnetns-local on")
    wanted = (("lro", False), ("loopback", False), ("netns-local", True), ("rx-gro", False))
    config = with_features_of("mlx5_0", link, NetworkConfig(features=wanted))
    assert config.features == (("rx-gro", False),)
    with pytest.raises(PlacementError, match="cannot change the feature lro"):
        with_features_of("mlx5_0", link, NetworkConfig(features=(("lro", True),)))


def test_a_feature_without_a_name_is_not_the_one_that_is_misspelt() -> None:
    link = replace(LINK, fixed_features=" off\nrx-lro off")
    with pytest.raises(PlacementError, match="cannot change the feature rx-lroo"):
        with_features_of("mlx5_0", link, NetworkConfig(features=(("rx-lroo", False),)))


def test_a_private_flag_that_the_driver_does_not_have_is_refused() -> None:
    with_features_of("mlx5_0", LINK, NetworkConfig(private_flags=(("legacy-rx", False),)))
    with pytest.raises(PlacementError, match="has no private flag legacy_rx") as refused:
        with_features_of("mlx5_0", LINK, NetworkConfig(private_flags=(("legacy_rx", False),)))
    assert refused.value.code is ErrorCode.INTERFACE_UNFIT
    assert refused.value.hint.startswith("write legacy-rx; `ethtool --show-priv-flags ")


def test_an_mtu_above_the_drivers_most_is_refused_where_that_is_known() -> None:
    refuse_unfit("mlx5_0", LINK, 9000, NetworkConfig())
    refuse_unfit("mlx5_0", replace(LINK, max_mtu=0), 65535, NetworkConfig())
    with pytest.raises(PlacementError, match="takes an MTU of at most 9000, not 9001"):
        refuse_unfit("mlx5_0", LINK, 9001, NetworkConfig())


def test_a_size_that_the_kernel_does_not_know_is_refused_where_that_is_known() -> None:
    config = NetworkConfig(settings=(("gso_max_size", 1000), ("gso_ipv4_max_size", 1000)))
    refuse_unfit("mlx5_0", replace(LINK, settings=()), None, config)
    with pytest.raises(PlacementError, match="has no gso_ipv4_max_size on this kernel"):
        refuse_unfit("mlx5_0", LINK, None, config)
