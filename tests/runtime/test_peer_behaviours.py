"""What DRANET's end-to-end tests show of a netdev in a pod, one test for each, by annotation on real runtimes.

docs/peers.md has all of DRANET's and runc's tests, with what shows the same here.
"""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig import ebpf, hoststate
from tests.rig.cri import Container, Cri, CriError, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.fabric import Fabric
from tests.rig.host_config import kernel_makes, on_host
from tests.rig.node import Node, load
from tests.rig.railnode import in_netns
from tests.rig.runtime import Runtime
from tests.runtime.test_network import ALL_RIGHTS, POD, Network

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

UNDERSCORED = "mlx5_6"
"""A netdev whose name no name of Kubernetes can have."""


def described() -> Node:
    """The node "eight", of which one netdev has that name. Those from rail4 on have nothing configured."""
    whole = load("eight")
    netdevs = (replace(it, name=UNDERSCORED if it.name == "rail6" else it.name) for it in whole.netdevs)
    return replace(whole, netdevs=tuple(netdevs))


@pytest.fixture(scope="module")
def node() -> Iterator[Fabric]:
    """That node, one for a module."""
    with Fabric(described()) as fabric:
        yield fabric


@pytest.fixture
def daemon(runtime: Runtime, node: Fabric) -> Iterator[Daemon]:
    """A daemon whose rule grants every right."""
    with Daemon(runtime, node, extra=ALL_RIGHTS) as running:
        yield running


class Pod:
    """A pod with one container, and its network."""

    def __init__(self, cri: Cri, name: str, text: str) -> None:
        """`text` is the pod's list of requests, or the keys of one."""
        self._cri = cri
        text = text if text.startswith("- ") else f"- {{{text}}}"
        self.sandbox: Sandbox = cri.run_pod(name, annotations={POD: text})
        self.container: Container = cri.run_container(self.sandbox, "main")
        self.network = Network(cri, self.sandbox)

    def addresses(self, link: str, scope: str = "global") -> set[str]:
        (shown,) = self.network.ip("address", "show", "dev", link)
        return {f"{it['local']}/{it['prefixlen']}" for it in shown["addr_info"] if it["scope"] == scope}

    def sysctl(self, key: str) -> str:
        """What a program in the container reads."""
        return self._run("cat", f"/proc/sys/net/{key}")

    def ping(self, address: str, *more: str) -> str:
        """What a ping says that the container has sent; it is answered."""
        return self._run("ping", "-c", "1", "-W", "2", *more, address)

    def features(self, link: str) -> dict[str, str]:
        lines = (it.partition(": ") for it in self.network.run("ethtool", "-k", link).splitlines())
        return {name.strip(): value.split()[0] for name, _, value in lines if value}

    def delete(self) -> None:
        self._cri.delete_pod(self.sandbox)

    def _run(self, *command: str) -> str:
        done = self._cri.exec(self.container, list(command))
        assert done.exit_code == 0, f"{done.stdout}{done.stderr}"
        return done.stdout.strip()


@pytest.mark.usefixtures("daemon")
@pytest.mark.parametrize("netdev", ["rail4", UNDERSCORED])
def test_a_netdev_of_any_name_has_the_name_and_the_address_of_its_request(
    host_equal: None, cri: Cri, netdev: str
) -> None:
    pod = Pod(cri, "pod1", f"match: {{netdev: {netdev}}}, interface: {{name: eth99, addresses: [169.254.169.13/24]}}")
    assert pod.addresses("eth99") | pod.addresses("eth99", "link") >= {"169.254.169.13/24"}
    assert netdev not in {it["ifname"] for it in pod.network.ip("link", "show")}
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_netdev_answers_and_asks_arp_as_its_request_says(host_equal: None, cri: Cri) -> None:
    pod = Pod(cri, "arp", "match: {netdev: rail4}, interface: {name: fab-arp, arpIgnore: 1, arpAnnounce: 2}")
    assert (pod.sysctl("ipv4/conf/fab-arp/arp_ignore"), pod.sysctl("ipv4/conf/fab-arp/arp_announce")) == ("1", "2")
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_netdev_has_the_hosts_address_where_the_request_says_none(host_equal: None, cri: Cri) -> None:
    with on_host("address add 169.254.169.14/32 dev rail4"):
        pod = Pod(cri, "plain", "match: {netdev: rail4}")
        assert pod.addresses("rdma0") == {"169.254.169.14/32"}
        pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_route_leads_through_a_gateway_that_another_route_reaches(host_equal: None, cri: Cri) -> None:
    pod = Pod(
        cri,
        "routes",
        "match: {netdev: rail4}, interface: {name: eth99, addresses: [169.254.169.13/32]}, "
        "routes: [{destination: 169.254.169.0/24, gateway: 169.254.169.1}, "
        "{destination: 169.254.169.1/32, scope: 253}]",
    )
    assert pod.addresses("eth99") == {"169.254.169.13/32"}
    assert pod.network.routes() == {
        "unicast 169.254.169.0/24 via 169.254.169.1 dev eth99",
        "unicast 169.254.169.1 dev eth99",
    }
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_netdev_has_mtu_mac_and_features_of_its_request(host_equal: None, cri: Cri) -> None:
    pod = Pod(
        cri,
        "advanced",
        "match: {netdev: rail4}, interface: {name: fab0, addresses: [169.254.169.14/24], mtu: 4321, "
        "hardwareAddr: '00:11:22:33:44:55'}, ethtool: {features: {tcp-segmentation-offload: false, "
        "generic-receive-offload: false, large-receive-offload: false}}",
    )
    (link,) = pod.network.ip("link", "show", "fab0")
    assert (link["mtu"], link["address"]) == (4321, "00:11:22:33:44:55")
    assert pod.addresses("fab0") == {"169.254.169.14/24"}
    features = pod.features("fab0")
    names = ("tcp-segmentation-offload", "generic-receive-offload", "large-receive-offload")
    assert [features[name] for name in names] == ["off", "off", "off"]
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_netdev_has_the_sizes_of_big_tcp(host_equal: None, cri: Cri) -> None:
    pod = Pod(
        cri,
        "bigtcp",
        "match: {netdev: rail4}, interface: {name: fab1, addresses: [192.168.200.1/24], mtu: 8896, "
        "gsoMaxSize: 65536, groMaxSize: 65536, gsoIPv4MaxSize: 65536, groIPv4MaxSize: 65536}, "
        "ethtool: {features: {tcp-segmentation-offload: true, generic-receive-offload: true, "
        "large-receive-offload: false}}",
    )
    (link,) = pod.network.ip("-d", "link", "show", "fab1")
    shown = [link[key] for key in link if key.endswith("_max_size") and key.startswith(("gso", "gro"))]
    assert link["mtu"] == 8896
    assert len(shown) in {2, 4}, "iproute2 before 6.3 does not show those of IPv4"
    assert set(shown) == {65536}
    features = pod.features("fab1")
    names = ("tcp-segmentation-offload", "generic-receive-offload", "large-receive-offload")
    assert [features[name] for name in names] == ["on", "on", "off"]
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_two_netdevs_of_one_request_have_their_own_addresses(host_equal: None, node: Fabric, cri: Cri) -> None:
    hosts = {
        netdev: f"169.254.169.{number}/32" for number, netdev in enumerate(("rail4", "rail5", UNDERSCORED, "rail7"))
    }
    with on_host(*(f"address add {address} dev {netdev}" for netdev, address in hosts.items())):
        pod = Pod(cri, "double", "match: {numaNode: 1}, count: 2, interface: {name: fab%d}")
        netdevs = {it.mac: it.name for it in node.node.netdevs}
        for name in ("fab0", "fab1"):
            (link,) = pod.network.ip("link", "show", name)
            assert pod.addresses(name) == {hosts[netdevs[link["address"]]]}
        pod.delete()


@pytest.mark.usefixtures("daemon")
def test_the_next_pod_has_the_hosts_address_again(host_equal: None, cri: Cri) -> None:
    """Nobody adds it anew in between."""
    with on_host("address add 169.254.169.14/32 dev rail4"):
        for _ in range(2):
            pod = Pod(cri, "again", "match: {netdev: rail4}, interface: {name: fab0}")
            assert pod.addresses("fab0") == {"169.254.169.14/32"}
            pod.delete()


def test_a_daemon_that_is_terminated_ends_in_good_order_and_its_pods_go_on(
    host_equal: None, cri: Cri, daemon: Daemon
) -> None:
    pod = Pod(cri, "stays", "match: {netdev: rail4}, interface: {name: fab0, addresses: [169.254.169.13/24]}")
    control = daemon.state_dir / "control.sock"
    assert control.is_socket()
    os.kill(daemon.pid, signal.SIGTERM)
    assert daemon.wait_ended() == 0
    assert not control.exists()
    assert pod.addresses("fab0") == {"169.254.169.13/24"}
    daemon.start()
    pod.delete()


@pytest.mark.usefixtures("daemon")
def test_permanent_neighbours_of_the_host_are_in_the_pod(host_equal: None, cri: Cri) -> None:
    with on_host(
        "address add 169.254.169.15/32 dev rail4",
        "neighbour add 192.168.1.1 lladdr 00:11:22:33:44:55 dev rail4 nud permanent",
        "neighbour add 2001:db8::1 lladdr 00:aa:bb:cc:dd:ee dev rail4 nud permanent",
    ):
        pod = Pod(cri, "neigh", "match: {netdev: rail4}, interface: {name: eth99, addresses: [169.254.169.13/24]}")
        assert pod.network.neighbours() >= {("192.168.1.1", "00:11:22:33:44:55"), ("2001:db8::1", "00:aa:bb:cc:dd:ee")}
        pod.delete()


@pytest.mark.usefixtures("daemon")
def test_a_table_of_the_host_and_the_rule_that_leads_to_it_are_in_the_pod(host_equal: None, cri: Cri) -> None:
    with on_host(
        "address add 169.254.169.13/24 dev rail4",
        "route add 10.10.10.0/24 via 169.254.169.1 dev rail4 table 100",
        "rule add from 10.20.30.0/24 table 100 priority 500",
    ):
        pod = Pod(cri, "tables", "match: {netdev: rail4}, interface: {name: eth99, addresses: [169.254.169.13/24]}")
        (route,) = pod.network.ip("route", "show", "table", "100")
        assert (route["dst"], route["gateway"], route["dev"]) == ("10.10.10.0/24", "169.254.169.1", "eth99")
        (rule,) = (it for it in pod.network.ip("rule", "show") if it["priority"] == 500)
        assert (rule["src"], rule["srclen"], rule["table"]) == ("10.20.30.0", 24, "100")
        pod.delete()


@pytest.mark.usefixtures("daemon")
def test_the_network_of_an_ipv6_address_has_the_kernels_route_only(host_equal: None, cri: Cri) -> None:
    with on_host("address add fd36::3:0:e:0:0/96 dev rail4 nodad"):
        pod = Pod(cri, "ipv6", "match: {netdev: rail4}, interface: {name: fab-ipv6}")
        routes = [it for it in pod.network.ip("-6", "route", "show") if it["dst"].startswith("fd36:")]
        assert [(it["dst"], it["dev"], it["protocol"], it["metric"]) for it in routes] == [
            ("fd36::3:0:e:0:0/96", "fab-ipv6", "kernel", 256)
        ]
        pod.delete()


def _router(*, vrf: str = "") -> str:
    """The requests of a pod that passes packets on between two networks."""
    ends = (("rail5", "fab1", "192.168.100.2/24"), ("rail7", "fab2", "192.168.200.2/24"))
    return "".join(
        f"- match: {{netdev: {netdev}}}\n  interface: {{name: {name}, addresses: [{address}], forwarding: true{vrf}}}\n"
        for netdev, name, address in ends
    )


def _end(netdev: str, own: int, other: int) -> str:
    """The request of a pod in one of these networks, which reaches the other one by a rule and a table."""
    to_table = "table: 100, priority: 32000"
    return f"""- match: {{netdev: {netdev}}}
  interface: {{name: fab1, addresses: [192.168.{own}.10/24]}}
  rules:
    - {{source: 192.168.{own}.0/24, {to_table}}}
    - {{destination: 192.168.{other}.0/24, {to_table}}}
  routes:
    - {{destination: 0.0.0.0/0, table: 100, gateway: 192.168.{own}.2}}
"""


@pytest.fixture
def programs(node: Fabric, tmp_path: Path) -> Iterator[Path]:
    """A bpffs with `classifier`; rail4 has another program by TCX."""
    place = tmp_path / "bpf"
    place.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", str(place)], check=True)
    program = ebpf.load("classifier")
    try:
        ebpf.pin(program, str(place / "classifier"))
        ebpf.attach_tcx(node.ifindex("rail4"), program)
        yield place
    finally:
        os.close(program)
        subprocess.run(["umount", str(place)], check=True)


def _programs_in(pod: Pod, link: str) -> tuple[int, ...]:
    (shown,) = pod.network.ip("link", "show", link)
    return in_netns(pod.network.netns, lambda: ebpf.tcx_programs(shown["ifindex"]))


@pytest.mark.usefixtures("daemon", "programs")
@pytest.mark.parametrize("without", [True, False])
def test_programs_of_tcx_are_in_the_pod_unless_its_request_removes_them(
    host_equal: None, cri: Cri, without: bool
) -> None:
    words = ", disableEbpfPrograms: true" if without else ""
    pod = Pod(cri, "tcx", f"match: {{netdev: rail4}}, interface: {{name: fab0{words}}}")
    assert len(_programs_in(pod, "fab0")) == (0 if without else 1)
    pod.delete()


@pytest.fixture
def filtered(programs: Path) -> Iterator[None]:
    """rail4 has `classifier` as a filter of TC, too, for what arrives."""
    subprocess.run(["tc", "qdisc", "add", "dev", "rail4", "clsact"], check=True)
    added = ["tc", "filter", "add", "dev", "rail4", "ingress", "bpf", "direct-action"]
    subprocess.run([*added, "object-pinned", str(programs / "classifier")], check=True)
    yield
    subprocess.run(["tc", "qdisc", "delete", "dev", "rail4", "clsact"], check=True)


@pytest.mark.usefixtures("daemon", "filtered")
def test_a_netdev_with_filters_of_tc_stays_on_the_host_whatever_is_asked(cri: Cri) -> None:
    before = hoststate.take()
    with pytest.raises(CriError, match=r"rail4 has tc filters \(ingress\), which its move would remove for good"):
        Pod(cri, "tc", "match: {netdev: rail4}, interface: {disableEbpfPrograms: true}")
    assert hoststate.difference(before, hoststate.take()) == []


ONE_HOP = "ttl=63"
"""What a pod says of the answer of another that sends with 64, behind one router."""


@pytest.mark.usefixtures("daemon")
def test_rules_and_a_table_lead_a_pod_to_another_through_a_router(host_equal: None, cri: Cri) -> None:
    one, router, two = (
        Pod(cri, name, text)
        for name, text in (
            ("one", _end("rail4", 100, 200)),
            ("router", _router()),
            ("two", _end(UNDERSCORED, 200, 100)),
        )
    )
    assert ONE_HOP in one.ping("192.168.200.10")
    assert ONE_HOP in two.ping("192.168.100.10")
    for pod in (one, router, two):
        pod.delete()


def _in_a_vrf(netdev: str, own: int) -> str:
    return f"""- match: {{netdev: {netdev}}}
  interface: {{name: fab1, addresses: [192.168.{own}.10/24], vrf: {{name: test-vrf}}}}
  routes:
    - {{destination: 0.0.0.0/0, gateway: 192.168.{own}.2}}
"""


def have_pods_in_vrfs_reach_each_other(cri: Cri) -> None:
    """Two of them, through a third one; bound to the netdev, as a program in a VRF has to be."""
    one, router, two = (
        Pod(cri, name, text)
        for name, text in (
            ("one", _in_a_vrf("rail4", 100)),
            ("router", _router(vrf=", vrf: {name: test-vrf}")),
            ("two", _in_a_vrf(UNDERSCORED, 200)),
        )
    )
    for pod, link in ((one, "fab1"), (router, "fab1"), (router, "fab2")):
        (shown,) = pod.network.ip("link", "show", link)
        assert shown["master"] == "test-vrf"
    assert ONE_HOP in one.ping("192.168.200.10", "-I", "fab1")
    for pod in (one, router, two):
        pod.delete()


@pytest.mark.skipif(not kernel_makes("vrf"), reason="this kernel has no VRF (CONFIG_NET_VRF); tests/lab has one")
@pytest.mark.usefixtures("daemon")
def test_vrfs_lead_a_pod_to_another_through_a_router(host_equal: None, cri: Cri) -> None:
    have_pods_in_vrfs_reach_each_other(cri)
