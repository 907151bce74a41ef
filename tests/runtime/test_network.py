"""The network of a netdev in a pod, as its annotation says it, on real runtimes and as `ip` shows it there."""

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rig.cri import Cri, CriError, Sandbox
from tests.rig.daemon import PROJECT, Daemon
from tests.rig.fabric import Fabric
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

POD = "rdma.noderesource.dev/pod"
ALL_RIGHTS = ("--config", str(PROJECT / "tests/rig/all_rights.toml"))
OURS = "114"
"""The protocol number of routes and rules that nri-rdma adds."""
RAIL = """
- match: {netdev: rail0}
  interface: {name: fab0, addresses: [10.9.0.2/24, 'fd00:9::2/64']}
  routes:
    - {destination: 10.20.0.0/16, gateway: 10.9.0.1, source: 10.9.0.2, metric: 5, mtu: 1400}
    - {destination: 10.30.0.0/16, gateway: 10.40.0.1}
    - {destination: 10.40.0.0/24, scope: 253}
    - {destination: 0.0.0.0/0, gateway: 10.9.0.1, table: 100}
    - {destination: 10.60.0.0/16, type: unreachable}
    - {destination: 'fd00:20::/32', gateway: 'fd00:9::1', source: 'fd00:9::2'}
  rules:
    - {priority: 100, source: 10.9.0.2/32, table: 100}
    - {priority: 101, table: 254, suppressPrefixLength: 0}
  neighbors:
    - {destination: 10.9.0.1, hardwareAddr: '02:00:5e:10:00:01'}
    - {destination: 'fd00:9::1', hardwareAddr: '02:00:5e:10:00:02'}
"""


@pytest.fixture
def trusting(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    """A daemon whose rule grants every right."""
    with Daemon(runtime, node, extra=ALL_RIGHTS) as running:
        yield running


class Network:
    """The network of a pod, as `ip` shows it."""

    def __init__(self, cri: Cri, pod: Sandbox) -> None:
        netns = cri.pod_status(pod).netns
        assert netns is not None
        self.netns = netns

    def ip(self, *words: str) -> list[dict[str, Any]]:
        command = ["nsenter", f"--net={self.netns}", "ip", "-j", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return list(json.loads(done.stdout or "[]"))

    def run(self, *command: str) -> str:
        """A command in the namespace; what it printed."""
        whole = ["nsenter", f"--net={self.netns}", *command]
        return subprocess.run(whole, capture_output=True, text=True, check=True).stdout

    def routes(self) -> set[str]:
        """Ours, of all tables and both versions, as `DESTINATION via GATEWAY ...`."""
        found = [
            it for way in ("-4", "-6") for it in self.ip(way, "-d", "route", "show", "table", "all", "proto", OURS)
        ]
        return {_words(it) for it in found}

    def rules(self) -> set[tuple[int, int, str, str]]:
        """Ours: version, priority, source and table."""
        return {
            (version, it["priority"], it["src"], it["table"])
            for version in (4, 6)
            for it in self.ip(f"-{version}", "rule", "show")
            if it.get("protocol") == OURS
        }

    def neighbours(self) -> set[tuple[str, str]]:
        """The permanent ones."""
        return {(it["dst"], it["lladdr"]) for it in self.ip("neighbour", "show", "nud", "permanent")}


def _words(route: dict[str, Any]) -> str:
    words = [route["type"], route["dst"]]
    named = (("via", "gateway"), ("dev", "dev"), ("src", "prefsrc"))
    words += [f"{word} {route[key]}" for word, key in named if key in route]
    words += [f"{key} {route[key]}" for key in ("metric", "table") if route.get(key, "main") != "main"]
    words += [f"mtu {it['mtu']}" for it in route.get("metrics", ()) if "mtu" in it]
    return " ".join(words)


@pytest.mark.usefixtures("trusting")
def test_routes_rules_and_neighbours_are_in_the_pod_and_the_host_is_as_before(host_equal: None, cri: Cri) -> None:
    pod = cri.run_pod("net", annotations={POD: RAIL})
    cri.run_container(pod, "main")
    network = Network(cri, pod)
    assert network.routes() == {
        "unicast 10.20.0.0/16 via 10.9.0.1 dev fab0 src 10.9.0.2 metric 5 mtu 1400",
        "unicast 10.30.0.0/16 via 10.40.0.1 dev fab0",
        "unicast 10.40.0.0/24 dev fab0",
        "unicast default via 10.9.0.1 dev fab0 table 100",
        "unreachable 10.60.0.0/16",
        "unicast fd00:20::/32 via fd00:9::1 dev fab0 src fd00:9::2 metric 1024",
    }
    assert network.rules() == {(4, 100, "10.9.0.2", "100"), (4, 101, "all", "main"), (6, 101, "all", "main")}
    assert {("10.9.0.1", "02:00:5e:10:00:01"), ("fd00:9::1", "02:00:5e:10:00:02")} <= network.neighbours()
    assert [it["dst"] for it in network.ip("route", "get", "10.30.1.1")] == ["10.30.1.1"]
    cri.delete_pod(pod)


@pytest.mark.usefixtures("trusting")
def test_each_of_several_devices_has_the_routes_that_its_addresses_reach(host_equal: None, cri: Cri) -> None:
    text = """
- count: 2
  interface: {addresses: [[10.9.0.0/31], [10.9.0.2/31]]}
  routes:
    - {destination: 10.20.0.0/16, gateway: 10.9.0.3}
    - {destination: 10.21.0.0/16, gateway: 10.9.0.1}
"""
    pod = cri.run_pod("rails", annotations={POD: text})
    cri.run_container(pod, "main")
    assert Network(cri, pod).routes() == {
        "unicast 10.20.0.0/16 via 10.9.0.3 dev rdma1",
        "unicast 10.21.0.0/16 via 10.9.0.1 dev rdma0",
    }
    cri.delete_pod(pod)


@pytest.mark.usefixtures("trusting")
def test_a_route_that_the_pod_has_already_refuses_the_pod_and_leaves_nothing(host_equal: None, cri: Cri) -> None:
    text = """
- interface: {addresses: [10.9.0.2/24]}
  rules: [{priority: 100, table: 100}]
  routes: [{destination: 10.9.0.0/24, scope: 253, mtu: 1400}]
"""
    with pytest.raises(CriError) as refused:
        pod = cri.run_pod("twice", annotations={POD: text})
        cri.run_container(pod, "main")
    assert "add route 10.9.0.0/24 mtu 1400: EEXIST" in refused.value.text
    assert "Next: the pod has a route to that network" in refused.value.text
    for left in cri.pods():
        cri.delete_pod(left)


SETTINGS = """
- match: {netdev: rail0}
  interface:
    name: fab0
    addresses: [10.9.0.2/24, 'fd00:9::2/64']
    hardwareAddr: 02:00:5e:10:00:77
    gsoMaxSize: 60000
    groMaxSize: 61000
    gsoIPv4MaxSize: 62000
    groIPv4MaxSize: 63000
    disableEbpfPrograms: true
    forwarding: true
    arpIgnore: 8
    arpAnnounce: 2
    enableIPv6: true
  ethtool: {features: {tx-tcp-segmentation: false}}
"""


@pytest.mark.usefixtures("trusting")
def test_every_setting_of_a_netdev_is_in_the_pod_and_the_host_is_as_before(host_equal: None, cri: Cri) -> None:
    pod = cri.run_pod("settings", annotations={POD: SETTINGS})
    cri.run_container(pod, "main")
    network = Network(cri, pod)
    (link,) = network.ip("-d", "link", "show", "fab0")
    sizes = [link[f"{name}_max_size"] for name in ("gso", "gro", "gso_ipv4", "gro_ipv4") if f"{name}_max_size" in link]
    assert (link["address"], sizes[:2]) == ("02:00:5e:10:00:77", [60000, 61000])
    assert sizes[2:] in ([], [62000, 63000]), "iproute2 before 6.3 does not show those of IPv4"
    sysctls = {
        "ipv4/conf/fab0/forwarding": "1",
        "ipv6/conf/fab0/forwarding": "1",
        "ipv4/conf/fab0/arp_ignore": "8",
        "ipv4/conf/fab0/arp_announce": "2",
        "ipv6/conf/fab0/disable_ipv6": "0",
    }
    assert {key: network.run("cat", f"/proc/sys/net/{key}").strip() for key in sysctls} == sysctls
    assert "tx-tcp-segmentation: off" in network.run("ethtool", "-k", "fab0")
    cri.delete_pod(pod)


@pytest.mark.usefixtures("trusting")
def test_what_a_netdev_cannot_have_refuses_the_pod_before_anything_moves(host_equal: None, cri: Cri) -> None:
    with pytest.raises(CriError, match=r"INTERFACE-UNFIT: rail0 .* cannot change the feature tx-tcp-segmentatoin"):
        text = "- {match: {netdev: rail0}, ethtool: {features: {tx-tcp-segmentatoin: false}}}"
        cri.run_container(cri.run_pod("typo", annotations={POD: text}), "main")
    for left in cri.pods():
        cri.delete_pod(left)


@pytest.mark.usefixtures("daemon")
def test_without_a_rule_that_grants_it_a_pod_has_no_routes(host_equal: None, cri: Cri) -> None:
    text = """
- routes: [{destination: 10.0.0.0/8, scope: 253}]
  neighbors: [{destination: 10.0.0.9, hardwareAddr: '02:00:5e:10:00:01'}]
"""
    with pytest.raises(CriError, match="without a rule that grants it pods may not have routes and neighbors"):
        cri.run_pod("stranger", annotations={POD: text})


def test_the_daemon_restarted_meanwhile_takes_the_rules_away_again(
    host_equal: None, cri: Cri, trusting: Daemon
) -> None:
    pod = cri.run_pod("net", annotations={POD: RAIL})
    cri.run_container(pod, "main")
    trusting.kill()
    trusting.start()
    network = Network(cri, pod)
    assert len(network.rules()) == 3
    cri.delete_pod(pod)
