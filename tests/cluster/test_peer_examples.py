"""What DRANET's example files ask for, in words of our own: docs/peers-examples.md says which file has which kind.

Each pod has exactly its devices, and afterwards the host has its addresses again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from tests.cluster.cluster import Cluster
from tests.cluster.gpu_driver import DRIVER as GPUS
from tests.cluster.gpu_driver import gpu_slice
from tests.cluster.pods import delete, events, execute, pod, start
from tests.cluster.test_claims import CONFIG as PLAIN
from tests.cluster.test_claims import (
    EIGHT,
    NAMES,
    claim_spec,
    claiming,
    claims_of,
    device_class,
    mac_of,
    macs,
    make,
    named,
    needs_1_36,
    published,
    template,
    verbs,
)
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

CONFIG = f"""{PLAIN}
[[rules]]
name = "trusted"
interface = [
    "name", "mtu", "addresses", "arp", "ipv6", "offload", "routes", "rules", "neighbors", "mac", "forwarding", "ebpf",
    "ethtool", "vrf",
]
"""
OURS = 'device.attributes["rdma.noderesource.dev"]'
RESOURCE = "example.com/rdma-nic"


def cel(expression: str) -> dict[str, Any]:
    """The selectors of a request; `it` in the expression is our domain of the device."""
    return {"selectors": [{"cel": {"expression": expression.replace("it.", f"{OURS}.").replace("it[", f"{OURS}[")}}]}


def gpus(expression: str, count: int = 1) -> dict[str, Any]:
    """A request for GPUs."""
    return {"deviceClassName": "gpus", "count": count, "selectors": [{"cel": {"expression": expression}}]}


def own(name: str, claim: str = "") -> dict[str, Any]:
    """A pod with the claim of its name, or with another one, which none of its containers names."""
    return pod(name, resourceClaims=[{"name": "net", "resourceClaimName": claim or name}])


def addresses(cluster: Cluster) -> dict[str, Any]:
    """The addresses of the host's netdevs, as the node's own `ip` tells them."""
    told = json.loads(cluster.nodes["n1"].machine.run("ip", "-j", "address", "show"))
    keys = ("family", "local", "prefixlen", "scope", "label")
    return {
        link["ifname"]: (link["address"], link["mtu"], [{key: it.get(key) for key in keys} for it in link["addr_info"]])
        for link in told
        if link["ifname"] in {netdev.name for netdev in EIGHT.netdevs}
    }


def chosen(cluster: Cluster, name: str, driver: str = "rdma.noderesource.dev") -> list[str]:
    """The devices of a driver that the claims of a pod were allocated."""
    results = [it for claim in claims_of(cluster, name) for it in claim["status"]["allocation"]["devices"]["results"]]
    return sorted(it["device"] for it in results if it["driver"] == driver)


@contextmanager
def run(cluster: Cluster, asked: Mapping[str, Any], *, nics: int) -> Iterator[str]:
    """Have a pod run with exactly so many devices, those that it was allocated; afterwards the host is as before."""
    before, name = addresses(cluster), asked["metadata"]["name"]
    assert len(before) == 8
    start(cluster, asked)
    numbers = sorted(NAMES[it] for it in chosen(cluster, name))
    assert len(numbers) == nics
    assert sorted(verbs(cluster, name)) == numbers
    there = {netdev.name for netdev in EIGHT.netdevs} - set(addresses(cluster))
    assert there == {f"rail{number}" for number in numbers}  # which are in the pod
    try:
        yield name
    finally:
        delete(cluster, name)
    wait_until(lambda: addresses(cluster) == before, "the host's addresses", 30)


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, with our devices, and GPUs of a driver that stands for NVIDIA's."""
    cluster.nodes["n1"].start_gpu_driver()
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, gpu_slice("eight", "n1"), device_class(), device_class("limited", extendedResourceName=RESOURCE))
    of_gpus = device_class("gpus")
    of_gpus["spec"]["selectors"] = [{"cel": {"expression": f'device.driver == "{GPUS}"'}}]
    make(cluster, of_gpus)
    return cluster


# Claims with a configuration


def test_a_claim_by_the_kind_of_netdev_gives_name_and_address(served: Cluster) -> None:
    parameters = {"interface": {"name": "net1", "addresses": ["169.254.169.13/24"]}}
    spec = claim_spec({"nic": cel('has(it.type) && it.type == "veth"')}, parameters)
    make(served, named("static", spec))
    with run(served, own("static"), nics=1) as name:
        assert "inet 169.254.169.13/24" in execute(served, name, "ip address show dev net1")


def test_a_claim_by_name_gives_routes_through_a_gateway_that_another_route_reaches(served: Cluster) -> None:
    routes = [
        {"destination": "169.254.170.0/24", "gateway": "169.254.169.1"},
        {"destination": "169.254.169.1/32", "scope": 253},
    ]
    parameters = {"interface": {"name": "net1", "addresses": ["169.254.169.13/32"]}, "routes": routes}
    make(served, named("routed", claim_spec({"nic": cel('has(it.ifName) && it.ifName == "rail4"')}, parameters)))
    with run(served, own("routed"), nics=1) as name:
        told = execute(served, name, "ip route")
        assert "169.254.170.0/24 via 169.254.169.1 dev net1" in told
        assert "169.254.169.1 dev net1 scope link" in told


def test_a_claim_gives_mtu_mac_and_features(served: Cluster) -> None:
    interface = {"name": "net1", "addresses": ["169.254.169.14/24"], "mtu": 4321, "hardwareAddr": "02:11:22:33:44:55"}
    features = {"tcp-segmentation-offload": False, "generic-receive-offload": False}
    parameters = {"interface": interface, "ethtool": {"features": features}}
    make(served, named("tuned", claim_spec({"nic": cel('it.ifName == "rail4"')}, parameters)))
    with run(served, own("tuned"), nics=1) as name:
        told = execute(served, name, "cat /sys/class/net/net1/mtu /sys/class/net/net1/address")
        assert told.split() == ["4321", "02:11:22:33:44:55"]


def test_a_claim_gives_arp_settings_and_sizes_of_big_tcp(served: Cluster) -> None:
    sizes = dict.fromkeys(("gsoMaxSize", "groMaxSize", "gsoIPv4MaxSize", "groIPv4MaxSize"), 65536)
    interface = {"name": "net1", "arpIgnore": 1, "arpAnnounce": 2, "mtu": 8896, **sizes, "disableEbpfPrograms": True}
    make(served, named("sized", claim_spec({"nic": cel('it.ifName == "rail4"')}, {"interface": interface})))
    with run(served, own("sized"), nics=1) as name:
        folder = "/proc/sys/net/ipv4/conf/net1"
        assert execute(served, name, f"cat {folder}/arp_ignore {folder}/arp_announce").split() == ["1", "2"]


def test_a_claim_without_configuration_gives_the_hosts_addresses(served: Cluster) -> None:
    make(served, named("plain", claim_spec({"nic": cel('it.ifName == "rail0"')})))
    with run(served, own("plain"), nics=1) as name:
        told = execute(served, name, "ip address show dev rdma0")
        assert "inet 198.51.100.2/31" in told
        assert "inet6 2001:db8:0:100::2/64" in told


def end(this: int, other: int) -> dict[str, Any]:
    """The parameters of a pod that reaches another network through the router in its own."""
    rules = [
        {"source": f"192.168.{this}.0/24", "table": 100, "priority": 32000},
        {"destination": f"192.168.{other}.0/24", "table": 100, "priority": 32000},
    ]
    return {
        "interface": {"name": "net1", "addresses": [f"192.168.{this}.10/24"]},
        "rules": rules,
        "routes": [{"destination": "0.0.0.0/0", "table": 100, "gateway": f"192.168.{this}.2"}],
    }


def test_claims_with_rules_and_tables_lead_a_pod_to_another_through_a_router(served: Cluster) -> None:
    router = claim_spec({"left": cel('it.ifName == "rail6"'), "right": cel('it.ifName == "rail7"')})
    router["devices"]["config"] = [
        {"requests": [side], "opaque": {"driver": "rdma.noderesource.dev", "parameters": {"interface": interface}}}
        for side, interface in (
            ("left", {"name": "net1", "addresses": ["192.168.100.2/24"], "forwarding": True}),
            ("right", {"name": "net2", "addresses": ["192.168.200.2/24"], "forwarding": True}),
        )
    ]
    make(served, named("router", router))
    make(served, named("one", claim_spec({"nic": cel('it.ifName == "rail4"')}, end(100, 200))))
    make(served, named("two", claim_spec({"nic": cel('it.ifName == "rail5"')}, end(200, 100))))
    before = addresses(served)
    for name in ("router", "one", "two"):
        start(served, own(name))
    for name, target in (("one", "192.168.200.10"), ("two", "192.168.100.10")):
        assert "ttl=63" in execute(served, name, f"ping -c 1 -W 5 {target}")
    for name in ("router", "one", "two"):
        delete(served, name)
    wait_until(lambda: addresses(served) == before, "the host's addresses", 30)


# Templates


def deployment(made: str) -> dict[str, Any]:
    """A Deployment of one pod with a claim from a template, which its container does not name."""
    asked = pod("unused", resourceClaims=[{"name": "net", "resourceClaimTemplateName": made}])
    labels = {"app": made}
    template_of_pod = {"metadata": {"labels": labels}, "spec": asked["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template_of_pod}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": made}, "spec": spec}


def test_a_deployment_that_is_applied_again_has_both_netdevs_again(served: Cluster) -> None:
    two = {**cel('has(it.ifName) && (it.ifName == "rail2" || it.ifName == "rail3")'), "count": 2}
    make(served, template("double", claim_spec({"nics": two})))
    before = addresses(served)
    for _ in range(2):
        make(served, deployment("double"))
        served.wait("its pod", lambda: len(ready(served, "double")) == 1)
        (name,) = ready(served, "double")
        assert sorted(verbs(served, name)) == [2, 3]
        assert {mac_of(2), mac_of(3)} <= set(macs(served, name))
        served.kubectl("delete", "deployment", "double", "--cascade=foreground", "--timeout=60s")
        wait_until(lambda: addresses(served) == before, "the host's addresses", 30)


def ready(cluster: Cluster, app: str) -> list[str]:
    """The running pods of a Deployment."""
    pods = cluster.get("pods", f"-l=app={app}")["items"]
    return [it["metadata"]["name"] for it in pods if it["status"]["phase"] == "Running"]


def test_a_worker_has_the_nic_of_its_class_and_its_name(served: Cluster) -> None:
    of_class = device_class("rdma-nics")
    of_class["spec"]["selectors"] += cel("it.rdma == true")["selectors"]
    asked = {"deviceClassName": "rdma-nics", **cel('it.ifName == "rail2"')}
    make(served, of_class, template("worker", claim_spec({"nic": asked}, {"interface": {"name": "net1"}})))
    worker = pod("worker", resourceClaims=[{"name": "rdma-net", "resourceClaimTemplateName": "worker"}])
    with run(served, worker, nics=1) as name:
        assert verbs(served, name) == [2]
        assert mac_of(2) in execute(served, name, "cat /sys/class/net/net1/address")
        assert "RDMA_DEVICES_RDMA_NET_NIC=" in execute(served, name, "env")


def test_a_worker_has_a_nic_whose_name_begins_so(served: Cluster) -> None:
    asked = cel('it.rdma == true && it.ifName.startsWith("rail")')
    make(served, template("begins", claim_spec({"gpu": gpus("true"), "nic": asked})))
    with run(served, claiming("begins", {"rdma-net": "begins"}), nics=1) as name:
        assert len(chosen(served, name, GPUS)) == 1


# GPUs and NICs


def test_a_gpu_and_a_nic_have_one_root(served: Cluster) -> None:
    index = f'device.attributes["{GPUS}"].index'
    spec = claim_spec({"gpu": gpus(f"{index} >= 5 && {index} < 6"), "nic": cel("it.rdma == true")})
    root = {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["gpu", "nic"]}
    spec["devices"]["constraints"] = [root]
    make(served, template("aligned", spec))
    with run(served, claiming("aligned", {"pair": "aligned"}), nics=1) as name:
        assert verbs(served, name) == [5]
        assert chosen(served, name, GPUS) == ["gpu-5"]


def test_four_pairs_have_a_root_each(served: Cluster) -> None:
    pairs = range(4)
    requests: dict[str, Mapping[str, Any]] = {}
    for number in pairs:
        requests |= {f"gpu-{number}": gpus("true"), f"nic-{number}": cel("it.rdma")}
    spec = claim_spec(requests)
    spec["devices"]["constraints"] = [
        {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": [f"gpu-{it}", f"nic-{it}"]} for it in pairs
    ]
    make(served, template("pairs", spec))
    with run(served, claiming("pairs", {"pairs": "pairs"}), nics=4) as name:
        assert [f"gpu-{number}" for number in sorted(verbs(served, name))] == chosen(served, name, GPUS)


def test_our_example_of_two_gpus_gives_each_the_nic_of_its_root(served: Cluster) -> None:
    text = (PROJECT / "docs/examples/aligned-claim.yaml").read_text().replace("gpu.nvidia.com", "gpus")
    of_nics, made, _ = yaml.safe_load_all(text)
    make(served, of_nics, made)
    with run(served, claiming("two-pairs", {"pairs": made["metadata"]["name"]}), nics=2) as name:
        assert [f"gpu-{number}" for number in sorted(verbs(served, name))] == chosen(served, name, GPUS)


@pytest.mark.parametrize(("home", "numbers"), [(0, [0, 1, 2, 3]), (1, [4, 5, 6, 7])], ids=["aligned", "unaligned"])
def test_four_gpus_by_address_have_the_four_nics_of_a_numa_node(served: Cluster, home: int, numbers: list[int]) -> None:
    places = '["0000:18:00.0", "0000:3e:00.0", "0000:61:00.0", "0000:80:00.0"]'
    asked = gpus(f'device.attributes["resource.kubernetes.io"]["pciBusID"] in {places}', 4)
    nics = {**cel(f'it["rdma"] == true && it["numaNode"] == {home}'), "count": 4}
    made = f"numa-{home}"
    make(served, template(made, claim_spec({"gpu": asked, "nic": nics})))
    with run(served, claiming(made, {"both": made}), nics=4) as name:
        assert sorted(verbs(served, name)) == numbers
        assert len(chosen(served, name, GPUS)) == 4


def test_a_gpu_by_address_has_a_nic_by_the_name_of_its_rdma_device(served: Cluster) -> None:
    asked = gpus('device.attributes["resource.kubernetes.io"].pciBusID == "0000:f8:00.0"')
    spec = claim_spec({"gpu": asked, "nic": {"allocationMode": "ExactCount", **cel('it["rdmaDevice"] == "mlx5_7"')}})
    make(served, named("by-name", spec))
    asked_pod = pod(
        "by-name",
        containers=[{"resources": {"claims": [{"name": "net"}]}}],
        resourceClaims=[{"name": "net", "resourceClaimName": "by-name"}],
    )
    with run(served, asked_pod, nics=1) as name:
        assert verbs(served, name) == [7]


def test_all_nics_that_are_no_virtual_netdevs_go_to_one_pod(served: Cluster) -> None:
    nics = {**cel("it.rdma == true && it.virtual == false"), "count": 8}
    make(served, template("all", claim_spec({"gpu": gpus("true", 4), "nic": nics})))
    with run(served, claiming("all", {"all": "all"}), nics=8) as name:
        assert sorted(verbs(served, name)) == list(range(8))


# Other ways to ask


def test_the_second_choice_counts_where_the_first_one_is_not_there(served: Cluster) -> None:
    spec = claim_spec({})
    choices = [
        {"name": "pair", "deviceClassName": "nics", "count": 2, **cel('it.ifName == "rail0"')},
        {"name": "one", "deviceClassName": "nics", **cel('it.ifName == "rail1"')},
    ]
    spec["devices"]["requests"] = [{"name": "nic", "firstAvailable": choices}]
    make(served, template("choices", spec))
    with run(served, claiming("choices", {"nic": "choices"}), nics=1) as name:
        assert verbs(served, name) == [1]


@needs_1_36
def test_a_resource_of_the_class_is_a_claim(served: Cluster) -> None:
    before = addresses(served)
    start(served, pod("limits", containers=[{"resources": {"limits": {RESOURCE: 2}}}]))
    assert len(verbs(served, "limits")) == 2
    delete(served, "limits")
    wait_until(lambda: addresses(served) == before, "the host's addresses", 30)


def test_a_selector_for_what_devices_lack_places_no_pod_unless_it_asks_whether_they_have_it(served: Cluster) -> None:
    make(served, named("lacks", claim_spec({"nic": cel("it.isSriovVf == true")})))
    make(served, named("asks", claim_spec({"nic": cel("!has(it.isSriovVf)")})))
    served.kubectl("create", "-f", "-", given=own("lacks"))
    served.wait("the scheduler's refusal", lambda: any("no such key" in it for it in events(served, "lacks")))
    with run(served, own("asks"), nics=1):
        assert served.get("pod", "lacks")["status"]["phase"] == "Pending"
        delete(served, "lacks")


def test_all_attributes_are_as_the_documentation_says(served: Cluster) -> None:
    (found,) = [it for it in served.get("resourceslices")["items"] if it["spec"]["driver"] == "rdma.noderesource.dev"]
    devices = {it["name"]: it for it in found["spec"]["devices"]}
    told = {name.rpartition("/")[2]: value for name, value in devices["pci-0000-19-00-0"]["attributes"].items()}
    expected = {
        "ifName": {"string": "rail0"},
        "type": {"string": "veth"},
        "alias": {"string": "rail 0 of the training fabric"},
        "ipv4": {"string": "198.51.100.2/31"},
        "ipv6": {"string": "2001:db8:0:100::2/64"},
        "pciSubsystem": {"string": "0001"},
        "sriov": {"bool": True},
        "sriovVfs": {"int": 0},
    }
    assert {name: told.get(name) for name in expected} == expected
