"""Routes, rules, neighbours and the netdev's own settings: at least as strict as DRANET, and all that is wrong at once.

The cases are those of DRANET's validation (TestValidateConfig, -InterfaceConfig, -Routes, -Rules, -NeighborConfig),
and those that the kernel would refuse, or take otherwise than meant.
"""

from __future__ import annotations

import json

import pytest

from nri_rdma.errors import RequestError
from nri_rdma.model.network import MAIN_TABLE, SCOPE_LINK, RouteType, VrfConfig
from nri_rdma.text.network import MAX_FLAGS, MAX_HOPS, MAX_NEIGHBOURS, MAX_ROUTES, MAX_RULES
from nri_rdma.text.nodes import node_of
from nri_rdma.text.refusals import each_of
from nri_rdma.text.requests import read_parameters
from tests.unit.text.asking import POD, refusal, requests

TWO = "count: 2, interface: {addresses: [[10.0.0.2/24], [10.0.1.2/24]]}"


# Routes


def test_a_route_has_the_main_table_and_goes_behind_a_gateway_by_default() -> None:
    (request,) = requests(
        "{routes: [{destination: 0.0.0.0/0, gateway: 10.0.0.1}, {destination: 'fd00::/8', scope: 253}]}"
    )
    behind, on_link = request.routes
    assert (behind.table, behind.scope, behind.type) == (MAIN_TABLE, 0, RouteType.UNICAST)
    assert (on_link.scope, on_link.gateway) == (SCOPE_LINK, None)


@pytest.mark.parametrize(
    ("written", "table"), [("0", 254), ("254", 254), ("1", 1), ("253", 253), ("4294967295", 2**32 - 1)]
)
def test_table_0_is_the_main_one(written: str, table: int) -> None:
    (request,) = requests(f"{{routes: [{{destination: 10.0.0.0/8, scope: 253, table: {written}}}]}}")
    assert request.routes[0].table == table


ROUTES = [
    ("{gateway: 10.0.0.1}", "", "destination is missing"),
    ("{destination: '', scope: 253}", ".destination", "not a network"),
    ("{destination: 10.0.0.0/33, scope: 253}", ".destination", "not a network"),
    ("{destination: 10.0.0.1, scope: 253}", ".destination", "not a network"),
    ("{destination: 'fd00::1', scope: 253}", ".destination", "not a network"),
    ("{destination: default, gateway: 10.0.0.1}", ".destination", "not a network"),
    ("{destination: 10.0.0.0/8}", "", "gateway is missing"),
    ("{destination: 10.0.0.0/8, scope: 0}", "", "gateway is missing"),
    ("{destination: 10.0.0.0/8, gateway: router}", ".gateway", "not an address"),
    ("{destination: 10.0.0.0/8, gateway: 10.0.0.1/24}", ".gateway", "not an address"),
    ("{destination: 10.0.0.0/8, gateway: 0.0.0.0}", ".gateway", "the unspecified address"),
    ("{destination: 10.0.0.0/8, gateway: 224.0.0.1}", ".gateway", "a multicast address"),
    ("{destination: 10.0.0.0/8, scope: 254}", ".scope", "'254' is not allowed"),
    ("{destination: 10.0.0.0/8, scope: link}", ".scope", "'link' is not allowed"),
    ("{destination: 10.0.0.0/8, scope: true}", ".scope", "'true' is not allowed"),
    ("{destination: 10.0.0.0/8, scope: 253, gateway: 10.0.0.1}", ".scope", "has no gateway"),
    ("{destination: 10.0.0.0/8, scope: 253, source: here}", ".source", "not an address"),
    ("{destination: 10.0.0.0/8, gateway: 'fd00::1'}", ".gateway", "gateway is IPv6, and the destination IPv4"),
    ("{destination: 'fd00::/8', gateway: 10.0.0.1}", ".gateway", "gateway is IPv4, and the destination IPv6"),
    ("{destination: 10.0.0.0/8, scope: 253, source: 'fd00::1'}", ".source", "source is IPv6"),
    ("{destination: 'fd00::/8', scope: 253, source: 10.0.0.1}", ".source", "source is IPv4"),
    ("{destination: 10.0.0.0/8, scope: 253, table: -1}", ".table", "'-1' is not allowed"),
    ("{destination: 10.0.0.0/8, scope: 253, table: 255}", ".table", "the table of the pod's own addresses"),
    ("{destination: 10.0.0.0/8, scope: 253, table: 4294967296}", ".table", "is not allowed"),
    ("{destination: 10.0.0.0/8, scope: 253, metric: -1}", ".metric", "is not allowed"),
    ("{destination: 10.0.0.0/8, scope: 253, onlink: true}", ".onlink", "onlink needs a gateway"),
    ("{destination: 'fd00::/8', scope: 253, mtu: 1279}", ".mtu", "1279 is too small for IPv6"),
    ("{destination: 10.0.0.0/8, scope: 253, mtu: 67}", ".mtu", "is not allowed"),
    ("{destination: 10.0.0.0/8, scope: 253, advmss: 0}", ".advmss", "is not allowed"),
    ("{destination: 10.0.0.0/8, type: local}", ".type", "'local' is not allowed"),
    ("{destination: 10.0.0.0/8, type: blackhole, gateway: 10.0.0.1}", ".gateway", "forwards no packets"),
    ("{destination: 10.0.0.0/8, multipath: []}", ".multipath", "the list is empty"),
    ("{destination: 10.0.0.0/8, multipath: [{weight: 1}]}", ".multipath[0]", "gateway is missing"),
    ("{destination: 10.0.0.0/8, multipath: [{gateway: 'fd00::1'}]}", ".multipath[0].gateway", "gateway is IPv6"),
    ("{destination: 10.0.0.0/8, multipath: [{gateway: 10.0.0.1, weight: 257}]}", ".multipath[0].weight", "not allowed"),
    ("{destination: 10.0.0.0/8, gateway: 10.0.0.3, multipath: [{gateway: 10.0.0.1}]}", ".gateway", "already"),
    ("{destination: 10.0.0.0/8, scope: 253, protocol: 3}", "", "unknown key 'protocol'"),
    ("10.0.0.0/8", "", "is not a mapping"),
]


@pytest.mark.parametrize(("text", "where", "what"), ROUTES)
def test_a_route_that_cannot_be_is_refused_where_it_stands(text: str, where: str, what: str) -> None:
    error = refusal(f"{{routes: [{text}]}}")
    assert (error.where, error.others) == (f"{POD}.routes[0]{where}", ())
    assert what in error.what


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (
            "{interface: {addresses: [10.0.0.2/24]}, routes: [{destination: 10.9.0.0/16, gateway: 10.1.0.1}]}",
            ".routes[0].gateway",
            "the gateway 10.1.0.1 is in none of the interface's networks",
        ),
        (
            "{interface: {addresses: [10.0.0.2/24]},"
            " routes: [{destination: 10.9.0.0/16, multipath: [{gateway: 10.0.0.1}, {gateway: 10.1.0.1}]}]}",
            ".routes[0].multipath",
            "the gateway 10.1.0.1 is in none of the interface's networks",
        ),
        (
            "{interface: {addresses: ['fd00::2/64']}, routes: [{destination: 10.1.0.0/16, scope: 253},"
            " {destination: 'fd09::/16', gateway: 'fd01::1'}]}",
            ".routes[1].gateway",
            "the gateway fd01::1 is in none of the interface's networks",
        ),
        *(
            (
                f"{{interface: {{addresses: [10.0.0.2/24]}}, routes: [{{destination: 10.1.0.0/16, {leads}}},"
                " {destination: 10.9.0.0/16, gateway: 10.1.0.1}]}",
                ".routes[1].gateway",
                "the gateway 10.1.0.1 is in none of the interface's networks",
            )
            for leads in ("gateway: 10.0.0.1", "type: blackhole")
        ),
        (
            "{interface: {addresses: [10.0.0.2/24]},"
            " routes: [{destination: 10.9.0.0/16, scope: 253, source: 10.0.0.3}]}",
            ".routes[0].source",
            "10.0.0.3 is no address of the interface",
        ),
        (
            "{count: 2, routes: [{destination: 10.9.0.0/16, gateway: 10.0.0.1}]}",
            ".routes[0]",
            "is for: the request has several devices and no interface.addresses to tell them apart",
        ),
        (f"{{{TWO}, routes: [{{destination: 10.9.0.0/16, gateway: 10.2.0.1}}]}}", ".routes[0]", "no address"),
        (f"{{{TWO}, routes: [{{destination: 10.9.0.0/16, scope: 253}}]}}", ".routes[0]", "2 of its devices reach it"),
        (
            f"{{{TWO}, routes: [{{destination: '10.9.0.0/16',"
            " multipath: [{gateway: 10.0.0.1}, {gateway: 10.0.1.1}]}]}",
            ".routes[0]",
            "not clear which device",
        ),
        (
            f"{{{TWO}, neighbors: [{{destination: 10.2.0.1, hardwareAddr: '02:00:00:00:00:01'}}]}}",
            ".neighbors[0].destination",
            "not clear which device",
        ),
        (
            "{interface: {vrf: {name: red, table: 100}}, routes: [{destination: 10.0.0.0/8, scope: 253, table: 5}]}",
            ".routes[0].table",
            "whose table is 100",
        ),
        ("{interface: {vrf: {name: red}}, rules: [{table: 5}]}", ".rules", "a VRF has a rule of its own"),
        (
            "{interface: {enableIPv6: false}, routes: [{destination: 'fd00::/8', scope: 253}]}",
            ".routes[0].destination",
            "enableIPv6 is false",
        ),
        ("{interface: {enableIPv6: false, addresses: ['fd00::2/64']}}", ".interface.addresses", "enableIPv6 is false"),
        (
            "{interface: {enableIPv6: false},"
            " neighbors: [{destination: 'fd00::9', hardwareAddr: '02:00:00:00:00:01'}]}",
            ".neighbors[0].destination",
            "enableIPv6 is false",
        ),
        ("{mode: shared, routes: [{destination: 10.0.0.0/8, scope: 253}]}", ".routes", "in mode shared"),
        ("{mode: shared, rules: [{table: 5}]}", ".rules", "in mode shared"),
        ("{mode: shared, ethtool: {features: {a: true}}}", ".ethtool", "in mode shared"),
        ("{mode: shared, interface: {arpIgnore: 1}}", ".interface", "in mode shared"),
    ],
)
def test_what_does_not_fit_the_rest_of_a_request_is_refused(text: str, where: str, what: str) -> None:
    error = refusal(text)
    assert (error.where, error.others) == (POD + where, ())
    assert what in error.what


@pytest.mark.parametrize(
    "text",
    [
        "{routes: [{destination: 10.9.0.0/16, gateway: 10.1.0.1}]}",  # the host's addresses may reach it
        "{interface: {addresses: [10.0.0.2/24]},"
        " routes: [{destination: 10.9.0.0/16, gateway: 10.1.0.1, onlink: true}]}",
        "{interface: {addresses: ['fd00::2/64']}, routes: [{destination: '::/0', gateway: 'fe80::1'}]}",
        f"{{{TWO}, routes: [{{destination: 10.9.0.0/16, scope: 253, source: 10.0.1.2}}]}}",
        f"{{{TWO}, routes: [{{destination: 10.9.0.0/16, type: blackhole}}]}}",
        "{interface: {vrf: {name: red, table: 100}}, routes: [{destination: 10.0.0.0/8, scope: 253, table: 100}]}",
        "{interface: {addresses: [10.0.0.2/24]}, routes: [{destination: 10.1.0.0/24, scope: 253},"
        " {destination: 10.9.0.0/16, gateway: 10.1.0.1}]}",
    ],
)
def test_what_the_kernel_takes_is_taken(text: str) -> None:
    assert requests(text)


def test_two_requests_have_no_route_of_the_same_destination_table_and_metric() -> None:
    route = "{destination: 10.9.0.0/16, scope: 253%s}"
    error = refusal(f"[{{routes: [{route % ''}]}}, {{routes: [{route % ''}]}}]")
    assert error.where == f"{POD}[1].routes[0]"
    assert "is taken by" in error.what
    assert len(requests(f"[{{routes: [{route % ''}]}}, {{routes: [{route % ', metric: 5'}]}}]")) == 2


def test_each_vrf_may_have_a_default_route() -> None:
    rail = (
        "{interface: {addresses: [10.%d.0.2/24], vrf: {name: rail%d}},"
        " routes: [{destination: 0.0.0.0/0, gateway: 10.%d.0.1}]}"
    )
    assert len(requests(f"[{rail % (1, 1, 1)}, {rail % (2, 2, 2)}]")) == 2
    twice = "{interface: {vrf: {name: red, table: 100}}, routes: [{destination: 10.0.0.0/8, scope: 253%s}]}"
    assert "is taken by" in refusal(f"[{twice % ''}, {twice % ', table: 100'}]").what


# Rules


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ("{}", "", "table is missing"),
        ("{priority: 100}", "", "table is missing"),
        ("{table: 0}", ".table", "not allowed"),
        ("{table: -1}", ".table", "not allowed"),
        ("{table: 5, priority: -1}", ".priority", "not allowed"),
        ("{table: 5, priority: 32768}", ".priority", "not allowed"),
        ("{table: 5, source: 10.0.0.1}", ".source", "not a network"),
        ("{table: 5, source: x}", ".source", "not a network"),
        ("{table: 5, destination: 'fd00::1'}", ".destination", "not a network"),
        ("{table: 5, source: 10.0.0.0/8, destination: 'fd00::/8'}", ".source", "source is IPv4"),
        ("{table: 5, fwmark: -1}", ".fwmark", "not allowed"),
        ("{table: 5, fwmask: 255}", ".fwmask", "fwmark, which is missing"),
        ("{table: 5, iif: 'a/b'}", ".iif", "not allowed"),
        ("{table: 5, invert: true}", ".invert", "no condition to invert"),
        ("{table: 5, suppressPrefixLength: 129}", ".suppressPrefixLength", "not allowed"),
        ("{table: 5, goto: 7}", "", "unknown key 'goto'"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_where_it_stands(text: str, where: str, what: str) -> None:
    error = refusal(f"{{rules: [{text}]}}")
    assert (error.where, error.others) == (f"{POD}.rules[0]{where}", ())
    assert what in error.what


def test_a_rule_is_of_the_version_of_its_networks() -> None:
    (request,) = requests("{rules: [{table: 5}, {table: 5, source: 10.0.0.0/8}, {table: 5, destination: 'fd00::/8'}]}")
    assert [(rule.version, rule.priority) for rule in request.rules] == [(0, 0), (4, 0), (6, 0)]


# Neighbours


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{hardwareAddr: '02:00:00:00:00:01'}", ""),
        ("{destination: 10.0.0.9}", ""),
        ("{destination: 10.0.0.9/24, hardwareAddr: '02:00:00:00:00:01'}", ".destination"),
        ("{destination: 10.0.0.9, hardwareAddr: 'ff:ff:ff:ff:ff:ff'}", ".hardwareAddr"),
        ("{destination: 10.0.0.9, hardwareAddr: router}", ".hardwareAddr"),
        ("{ipAddress: 10.0.0.9, destination: 10.0.0.9, hardwareAddr: '02:00:00:00:00:01'}", ""),
    ],
)
def test_a_neighbour_that_cannot_be_is_refused_where_it_stands(text: str, where: str) -> None:
    assert refusal(f"{{neighbors: [{text}]}}").where == f"{POD}.neighbors[0]{where}"


def test_a_neighbour_is_named_once() -> None:
    one, other = (f"{{destination: 10.0.0.9, hardwareAddr: '02:00:00:00:00:0{n}'}}" for n in (1, 2))
    error = refusal(f"{{neighbors: [{one}, {other}]}}")
    assert error.where == f"{POD}.neighbors[1].destination"


# The netdev


@pytest.mark.parametrize(
    ("text", "where"),
    [
        *(
            (f"{{{key}MaxSize: {value}}}", f".{key}MaxSize")
            for key in ("gso", "gro", "gsoIPv4", "groIPv4")
            for value in (0, -1)
        ),
        ("{gsoMaxSize: 524281}", ".gsoMaxSize"),
        ("{hardwareAddr: '01:00:00:00:00:01'}", ".hardwareAddr"),
        ("{hardwareAddr: ['02:00:00:00:00:01']}", ".hardwareAddr"),
        *((f"{{arpIgnore: {value}}}", ".arpIgnore") for value in (-1, 4, 5, 6, 7, 9, "true")),
        *((f"{{arpAnnounce: {value}}}", ".arpAnnounce") for value in (-1, 3)),
        ("{forwarding: 1}", ".forwarding"),
        ("{enableIPv6: yes}", ".enableIPv6"),
        ("{disableEbpfPrograms: 'true'}", ".disableEbpfPrograms"),
        ("{vrf: red}", ".vrf"),
        ("{vrf: {}}", ".vrf"),
        ("{vrf: {name: ''}}", ".vrf.name"),
        ("{vrf: {table: 100}}", ".vrf"),
        *((f"{{vrf: {{name: red, table: {table}}}}}", ".vrf.table") for table in (0, 253, 254, 255)),
    ],
)
def test_a_setting_that_cannot_be_is_refused_where_it_stands(text: str, where: str) -> None:
    assert refusal(f"{{interface: {text}}}").where == f"{POD}.interface{where}"


@pytest.mark.parametrize("value", [0, 1, 2, 3, 8])
def test_arp_ignore_has_the_values_of_the_kernel(value: int) -> None:
    (request,) = requests(f"{{interface: {{arpIgnore: {value}, arpAnnounce: 2}}}}")
    assert (request.interface.arp_ignore, request.interface.arp_announce) == (value, 2)


def test_several_devices_have_a_mac_each() -> None:
    (request,) = requests("{count: 2, interface: {hardwareAddr: ['02:00:00:00:00:01', '02:00:00:00:00:02']}}")
    assert request.interface.macs == ("02:00:00:00:00:01", "02:00:00:00:00:02")
    assert (
        refusal("{count: 2, interface: {hardwareAddr: '02:00:00:00:00:01'}}").where == f"{POD}.interface.hardwareAddr"
    )
    assert refusal("{count: all, interface: {hardwareAddr: '02:00:00:00:00:01'}}").where.endswith("hardwareAddr")
    twice = "[{interface: {hardwareAddr: '02:00:00:00:00:01'}}, {interface: {hardwareAddr: '02:00:00:00:00:01'}}]"
    assert "the MAC 02:00:00:00:00:01 is taken by" in refusal(twice).what


def test_a_vrf_without_a_table_has_the_one_that_dranet_gives_it() -> None:
    """FNV-1a of 32 bits: the digest of "a" is 0xE40C292C, of "foobar" 0xBF9CF968 (RFC 9923)."""
    for name, digest in (("a", 0xE40C292C), ("foobar", 0xBF9CF968)):
        (request,) = requests(f"{{interface: {{vrf: {{name: {name}}}}}}}")
        assert request.interface.vrf == VrfConfig(name=name, table=1000 + digest % 1000)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{}", ""),
        ("{features: {}}", ".features"),
        ("{features: [tx]}", ".features"),
        ("{features: {tx-gso: 1}}", ".features.tx-gso"),
        ("{features: {'a\\tb': true}}", ".features"),
        ("{privateFlags: {}}", ".privateFlags"),
        ("{privateFlags: {legacy-rx: 1}}", ".privateFlags.legacy-rx"),
    ],
)
def test_ethtool_takes_features_and_flags_that_are_on_or_off(text: str, where: str) -> None:
    assert refusal(f"{{ethtool: {text}}}").where == f"{POD}.ethtool{where}"


# Everything at once, and not without end


def test_all_that_is_wrong_in_a_request_is_told_at_once() -> None:
    error = refusal(
        "- {name: A, colour: red, interface: {mtu: 1, arpIgnore: 4},"
        " routes: [{destination: x}, {destination: 10.0.0.0/8, gateway: 'fd00::1', source: 'fd00::2'}], rules: [{}]}\n"
        "- {pool: 7}\n"
    )
    places = [it.where.removeprefix(POD) for it in each_of(error)]
    assert places == [
        "[0]",
        "[0].name",
        "[0].interface.mtu",
        "[0].interface.arpIgnore",
        "[0].routes[0].destination",
        "[0].routes[1].gateway",
        "[0].routes[1].source",
        "[0].rules[0]",
        "[1].pool",
    ]
    assert str(error).endswith("There are 8 more problems: see nri-rdma validate.")


@pytest.mark.parametrize(
    ("key", "entry", "most"),
    [
        ("routes", {"destination": "10.0.0.0/8", "scope": 253}, MAX_ROUTES),
        ("rules", {"table": 5}, MAX_RULES),
        ("neighbors", {"destination": "10.0.0.9", "hardwareAddr": "02:00:00:00:00:01"}, MAX_NEIGHBOURS),
    ],
)
def test_there_is_a_most_of_everything(key: str, entry: dict[str, object], most: int) -> None:
    with pytest.raises(RequestError, match=f"write at most {most}"):
        read_parameters(node_of({key: [entry] * 10_000}), "claim", 1)


def test_there_is_a_most_of_gateways_and_of_features() -> None:
    hops = [{"gateway": f"10.0.{n}.1"} for n in range(MAX_HOPS + 1)]
    with pytest.raises(RequestError, match=f"write at most {MAX_HOPS}"):
        read_parameters(node_of({"routes": [{"destination": "10.0.0.0/8", "multipath": hops}]}), "claim", 1)
    features = {f"tx-{n}": True for n in range(MAX_FLAGS)}
    read_parameters(node_of({"ethtool": {"features": features}}), "claim", 1)
    features["rx-all"] = True
    with pytest.raises(RequestError, match=f"write at most {MAX_FLAGS}"):
        read_parameters(node_of({"ethtool": {"features": features}}), "claim", 1)


def test_a_configuration_written_for_dranet_is_read_as_it_is() -> None:
    config = {
        "interface": {
            "name": "dranet0",
            "addresses": ["169.254.169.13/32"],
            "mtu": 4321,
            "hardwareAddr": "00:11:22:33:44:55",
            "gsoMaxSize": 65536,
            "groMaxSize": 65536,
            "gsoIPv4MaxSize": 65536,
            "groIPv4MaxSize": 65536,
            "disableEbpfPrograms": True,
            "forwarding": True,
            "arpIgnore": 1,
            "arpAnnounce": 2,
        },
        "routes": [
            {"destination": "169.254.169.0/24", "gateway": "169.254.169.1"},
            {"destination": "169.254.169.1/32", "scope": 253},
        ],
        "rules": [{"priority": 100, "source": "169.254.169.13/32", "table": 100}],
        "neighbors": [{"destination": "169.254.169.1", "hardwareAddr": "00:11:22:33:44:66"}],
        "ethtool": {"features": {"tcp-segmentation-offload": False}},
    }
    request = read_parameters(node_of(json.loads(json.dumps(config))), "claim", 1)
    assert [str(route) for route in request.routes] == [
        "169.254.169.0/24 via 169.254.169.1",
        "169.254.169.1/32",
    ]
