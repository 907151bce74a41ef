"""A netdev works in a pod as it worked on the host, without one key of configuration: a node on a rail fabric."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import pytest

from tests.rig import hoststate
from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link, look
from tests.rig.hoststate import POD_NETWORK
from tests.rig.railnode import (
    PEERS,
    RAILS,
    RailNode,
    Wire,
    behind,
    leaf_addresses,
    peer_addresses,
    rail_addresses,
)
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
OWN_TABLE = 101


@pytest.fixture(scope="module")
def rails() -> Iterator[RailNode]:
    """The node, one for a module: every test gives it back as it was."""
    with RailNode() as node:
        yield node


@pytest.fixture
def wire(rails: RailNode) -> Iterator[Wire]:
    """Leaves and peers."""
    with Wire(rails.netns) as wire:
        yield wire


@pytest.fixture
def rail_daemon(runtime: Runtime, rails: RailNode) -> Iterator[Daemon]:
    """A daemon on that node."""
    with Daemon(runtime, rails) as running:
        yield running


def netns_of(cri: Cri, pod: Sandbox) -> Path:
    """The pod's network namespace."""
    netns = cri.pod_status(pod).netns
    assert netns is not None
    return netns


@pytest.mark.usefixtures("rail_daemon")
def test_a_netdev_reaches_its_leaf_from_the_pod(host_equal: None, rails: RailNode, wire: Wire, cri: Cri) -> None:
    pod = cri.run_pod("one", annotations={POD: "- {match: {netdev: hca0}}"})
    cri.run_container(pod, "main")
    for target in (*leaf_addresses(0), *behind(0)):
        arrived = wire.send(netns_of(cri, pod), target)
        assert (arrived.link, arrived.mac) == ("p0", rails.node.netdevs[0].mac)
        assert arrived.source in rail_addresses(0)
    cri.delete_pod(pod)


def ip(*arguments: str, netns: Path | None = None) -> str:
    """What `ip` says on the host, or in a namespace."""
    inside = ["nsenter", f"--net={netns}"] if netns is not None else []
    return subprocess.run([*inside, "ip", *arguments], capture_output=True, text=True, check=True).stdout


def test_the_cluster_network_stays_the_pods(host_equal: None, rails: RailNode, cri: Cri, rail_daemon: Daemon) -> None:
    """Routes that cover the pod's address, in the table `main` and where all packets come to, and one that does not."""
    leaf = leaf_addresses(2)[0]
    cover = f"{POD_NETWORK} via {leaf} dev hca2"
    ip("route", "add", *cover.split())
    ip("route", "add", *cover.split(), "table", "77")
    ip("route", "add", "203.0.113.240/28", "via", leaf, "dev", "hca2", "table", "77", "mtu", "1400", "metric", "9")
    ip("rule", "add", "priority", "70", "lookup", "77")
    try:
        pod = cri.run_pod("covered", annotations={POD: "- {match: {netdev: hca2}}"})
        container = cri.run_container(pod, "main")
        netns = netns_of(cri, pod)
        routes = json.loads(ip("-j", "route", "show", "table", "all", netns=netns))
        (inherited,) = (it for it in routes if str(it.get("table")) == "77")
        assert (inherited["dst"], inherited["gateway"], inherited["metric"]) == ("203.0.113.240/28", leaf, 9)
        assert inherited["metrics"] == [{"mtu": 1400}]
        assert not any(it["dst"] == str(POD_NETWORK) for it in routes)
        (moved,) = rail_daemon.status()["sandboxes"][0]["moves"]
        assert len(moved["left_out"]) == 2
        assert all(f"covers the pod's address {cri.pod_status(pod).ip}" in it for it in moved["left_out"])
        assert str(POD_NETWORK) in rail_daemon.cli("trace").stdout or "left on the host" in rail_daemon.log
        assert "70:\tfrom all lookup 77" in ip("rule", netns=netns)
        assert cri.exec(container, ["ping", "-c", "1", "-W", "2", gateway_of(netns)]).exit_code == 0
        cri.delete_pod(pod)
    finally:
        wait_until(lambda: host_link("hca2") is not None, "the netdev to be home")
        ip("rule", "delete", "priority", "70")
        for route in json.loads(ip("-j", "route", "show", "table", "77")):
            ip("route", "delete", route["dst"], "table", "77")
        ip("route", "delete", *cover.split())


@pytest.mark.usefixtures("cri")
def test_what_stays_on_the_host_is_told_before_the_pod_runs(
    host_equal: None, rails: RailNode, rail_daemon: Daemon, tmp_path: Path
) -> None:
    pod = {"kind": "Pod", "metadata": {"name": "one", "annotations": {POD: "- {match: {netdev: hca2}}"}}, "spec": {}}
    pod["spec"] = {"containers": [{"name": "main"}]}
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    leaf = leaf_addresses(2)[0]
    ip("route", "add", "10.96.0.0/11", "via", leaf, "dev", "hca2")
    try:
        done = rail_daemon.cli("explain", str(tmp_path / "pod.json"), "--service-range", "10.96.0.0/12")
    finally:
        ip("route", "delete", "10.96.0.0/11")
    assert done.returncode == 0, done.stderr
    assert (
        f"  hca2 leaves on the host: the route 10.96.0.0/11 via {leaf}: it covers the service range 10.96.0.0/12"
    ) in done.stdout.splitlines()


def gateway_of(netns: Path) -> str:
    """The gateway of the pod's own network."""
    (found,) = {
        it["gateway"]
        for it in json.loads(ip("-j", "route", netns=netns))
        if it.get("dev") == "eth0" and "gateway" in it
    }
    return str(found)


@contextmanager
def policy_routing(number: int) -> Iterator[tuple[str, str]]:
    """A default route through the leaf in a table of its own, and a rule for each of the netdev's addresses, as on a
    host with policy routing per rail; yields the addresses."""
    table, addresses = str(OWN_TABLE + number), rail_addresses(number)
    families = list(zip(("-4", "-6"), leaf_addresses(number), addresses, strict=True))
    for family, leaf, address in families:
        ip(family, "route", "add", "default", "via", leaf, "dev", f"hca{number}", "table", table)
        ip(family, "rule", "add", "from", address, "lookup", table)
    try:
        yield addresses
    finally:
        wait_until(lambda: host_link(f"hca{number}") is not None, "the netdev to be home")
        for family, _, address in families:
            ip(family, "rule", "delete", "from", address, "lookup", table)
            ip(family, "route", "delete", "default", "table", table)


def default_routes(table: str, netns: Path | None = None) -> dict[str, list[tuple[str, str]]]:
    """The default routes of a table: gateway and link, by family."""
    return {
        family: [(it["gateway"], it["dev"]) for it in json.loads(told)]
        for family in ("-4", "-6")
        if (told := ip(family, "-j", "route", "show", "default", "table", table, netns=netns)).strip()
    }


def test_a_default_route_in_a_table_of_its_own_comes_along_and_returns(
    host_equal: None, rails: RailNode, wire: Wire, cri: Cri, rail_daemon: Daemon
) -> None:
    with policy_routing(0) as addresses, policy_routing(1):
        before = hoststate.take()
        pod = cri.run_pod("policy", annotations={POD: "- {match: {netdev: hca0}}"})
        container = cri.run_container(pod, "main")
        netns = netns_of(cri, pod)
        for address, target in zip(addresses, behind(5), strict=True):  # only the default route leads there
            arrived = wire.send(netns, target, address)
            assert (arrived.link, arrived.mac, arrived.source) == ("p0", rails.node.netdevs[0].mac, address)
        assert default_routes(str(OWN_TABLE), netns) == {
            family: [(leaf, "rdma0")] for family, leaf in zip(("-4", "-6"), leaf_addresses(0), strict=True)
        }
        assert not any(default_routes("main", netns).values())  # of the pod's own, this CNI plugin makes none
        assert cri.exec(container, ["ping", "-c", "1", "-W", "2", gateway_of(netns)]).exit_code == 0
        (moved,) = rail_daemon.status()["sandboxes"][0]["moves"]
        assert not moved.get("left_out")
        cri.delete_pod(pod)
        wait_until(lambda: hoststate.difference(before, hoststate.take()) == [], "the host to be as before")


@pytest.mark.usefixtures("rail_daemon")
def test_two_rails_with_default_routes_of_their_own_each_leave_through_theirs(
    host_equal: None, rails: RailNode, wire: Wire, cri: Cri
) -> None:
    with policy_routing(0), policy_routing(1):
        before = hoststate.take()
        pod = cri.run_pod("both", annotations={POD: "- {match: {netdev: hca0}}\n- {match: {netdev: hca1}}"})
        cri.run_container(pod, "main")
        for number in (0, 1):
            for address, target in zip(rail_addresses(number), behind(5), strict=True):
                arrived = wire.send(netns_of(cri, pod), target, address)
                assert (arrived.link, arrived.source) == (f"p{number}", address)
        cri.delete_pod(pod)
        wait_until(lambda: hoststate.difference(before, hoststate.take()) == [], "the host to be as before")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (f"fwmark 7 lookup {OWN_TABLE}", f"table {OWN_TABLE}, to which more than the netdev's own packets come"),
        (f"from 203.0.113.200 lookup {OWN_TABLE}", "(rule 90: from 203.0.113.200/32 lookup 101)"),
    ],
)
def test_a_default_route_that_others_of_the_host_need_is_refused(
    host_equal: None, cri: Cri, rail_daemon: Daemon, rule: str, reason: str
) -> None:
    """Also where the rule comes after the node was read."""
    wanted = {POD: "- {match: {netdev: hca0}}"}
    with policy_routing(0):
        cri.delete_pod(cri.run_pod("before", annotations=wanted))
        wait_until(lambda: host_link("hca0") is not None, "the netdev to be home")
        ip("rule", "add", "priority", "90", *rule.split())
        try:
            with pytest.raises(CriError, match=r"DEVICE-IN-USE: .*hca0 carries a default route in ") as refused:
                cri.run_pod("refused", annotations=wanted)
            assert reason in refused.value.text
        finally:
            ip("rule", "delete", "priority", "90")
        cri.delete_pod(cri.run_pod("after", annotations=wanted))


@pytest.mark.usefixtures("rail_daemon")
def test_a_default_route_of_the_table_main_is_refused(host_equal: None, cri: Cri) -> None:
    default = ("default", "via", leaf_addresses(0)[0], "dev", "hca0", "metric", "4711")
    ip("route", "add", *default)
    try:
        with pytest.raises(CriError, match=r"DEVICE-IN-USE: .*hca0 carries a default route"):
            cri.run_pod("refused", annotations={POD: "- {match: {netdev: hca0}}"})
    finally:
        ip("route", "delete", *default)


@pytest.mark.usefixtures("rail_daemon")
def test_nothing_comes_along_where_the_pod_wants_nothing(host_equal: None, cri: Cri) -> None:
    text = "- {match: {netdev: hca0}, interface: {inherit: false}}"
    pod = cri.run_pod("bare", annotations={POD: text})
    seen = look(cri, cri.run_container(pod, "main"))
    assert not [it for it in seen.addresses.get("rdma0", []) if not it.startswith("fe80:")]
    assert ip("-4", "route", "show", "table", "all", "dev", "rdma0", netns=netns_of(cri, pod)) == ""
    cri.delete_pod(pod)


@pytest.mark.usefixtures("rail_daemon")
def test_each_leaf_and_each_peer_is_reached_through_its_own_netdev(
    host_equal: None, rails: RailNode, wire: Wire, cri: Cri
) -> None:
    pod = cri.run_pod("all", annotations={POD: str(RAILS + PEERS)})
    cri.run_container(pod, "main")
    netns, macs = netns_of(cri, pod), [it.mac for it in rails.node.netdevs]
    for number in range(RAILS):
        for target in (*leaf_addresses(number), *behind(number)):
            arrived = wire.send(netns, target)
            assert (arrived.link, arrived.mac) == (f"p{number}", macs[number]), target
            assert arrived.source in rail_addresses(number)
    for number, peer in product(range(RAILS, RAILS + PEERS), range(PEERS)):
        for source, target in zip(rail_addresses(number), peer_addresses(peer), strict=True):
            arrived = wire.send(netns, target, source)
            assert (arrived.link, arrived.mac, arrived.source) == (f"p{number}", macs[number], source), target
    answered = {
        it["dst"]: it["lladdr"] for it in json.loads(ip("-j", "neighbour", "show", "dev", "br0", netns=rails.netns))
    }
    for number in range(RAILS, RAILS + PEERS):  # each netdev has answered for its own addresses only
        assert {answered[address] for address in rail_addresses(number)} == {macs[number]}
    cri.delete_pod(pod)
