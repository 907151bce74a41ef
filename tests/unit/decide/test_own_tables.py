"""Default routes outside the table main: which of them the host would miss with their netdev."""

from ipaddress import ip_interface, ip_network

import pytest

from nri_rdma.decide.inventory import in_use_reasons
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import RouteConfig, RoutingRule
from nri_rdma.model.routing import KnownRule, Routing
from nri_rdma.model.usage import HostUse

RAIL = LinkState(
    ifindex=5,
    name="rail0",
    kind="",
    parent="",
    permanent_mac="",
    mac="02:00:00:00:00:05",
    mtu=9000,
    txqlen=1000,
    alias="",
    alt_names=(),
    up=True,
)
OWN = (ip_interface("10.1.0.1/24"), ip_interface("fd01::1/64"))
TABLE = 101


def _rule(*, version: int = 4, foreign: str = "", table: int = TABLE, **said: object) -> KnownRule:
    networks = {key: ip_network(str(said.pop(key))) for key in ("source", "destination") if key in said}
    rule = RoutingRule(version=version, priority=100, table=table, **networks, **said)  # type: ignore[arg-type] # the test's own keywords
    return KnownRule(rule=rule, foreign=foreign)


def _use(*rules: KnownRule, versions: tuple[int, ...] = (4, 6), others: tuple[str, ...] = ("192.0.2.1/24",)) -> HostUse:
    """A host whose rail0 has default routes in a table of its own."""
    routes = tuple(
        RouteConfig(destination=ip_network("0.0.0.0/0" if version == 4 else "::/0"), table=TABLE)
        for version in versions
    )
    kernels = [_rule(table=table, version=version) for table in (255, 254) for version in (4, 6)]
    return HostUse(
        links=(RAIL,),
        routing=Routing(
            rules=(*kernels, *rules),
            routes={5: routes},
            addresses={5: OWN, 2: tuple(map(ip_interface, others))},
        ),
    )


@pytest.mark.parametrize(
    "rule",
    [
        _rule(source="10.1.0.1/32"),
        _rule(source="fd01::1/128", version=6),
        _rule(source="10.1.0.0/24"),
        _rule(destination="10.1.0.0/24"),
        _rule(source="10.1.0.1/32", fwmark=7),
        _rule(source="10.1.0.1/32", foreign="ipproto"),
        _rule(iif="rail0"),
        _rule(oif="rail0", version=6),
        _rule(suppress_prefix_length=0),
        _rule(table=102),
    ],
    ids=str,
)
def test_a_default_route_that_only_its_own_packets_take_is_no_use(rule: KnownRule) -> None:
    assert in_use_reasons(RAIL, _use(rule)) == ()


def test_a_default_route_that_no_rule_leads_to_is_no_use() -> None:
    assert in_use_reasons(RAIL, _use()) == ()


@pytest.mark.parametrize(
    "rule",
    [
        _rule(),
        _rule(version=6),
        _rule(fwmark=7),
        _rule(source="192.0.2.1/32"),
        _rule(source="10.0.0.0/8"),
        _rule(source="fd00::/8", version=6),
        _rule(destination="10.2.0.0/24"),
        _rule(iif="eth0"),
        _rule(source="10.1.0.1/32", invert=True),
        _rule(iif="rail0", invert=True),
        _rule(table=0, foreign="l3mdev"),
    ],
    ids=str,
)
def test_a_default_route_that_other_packets_come_to_is_in_use(rule: KnownRule) -> None:
    reason = (
        f"rail0 carries a default route in table 101, to which more than the netdev's own packets come (rule {rule})"
    )
    assert in_use_reasons(RAIL, _use(_rule(source="10.1.0.1/32"), rule)) == (reason,)


def test_a_rule_of_one_ip_version_leads_to_the_default_routes_of_that_one_only() -> None:
    assert in_use_reasons(RAIL, _use(_rule(version=6), versions=(4,))) == ()


def test_a_subnet_in_which_another_link_has_an_address_is_not_the_netdevs_own() -> None:
    rule = _rule(source="10.1.0.0/24")
    assert in_use_reasons(RAIL, _use(rule, others=("10.1.0.2/24",))) != ()
