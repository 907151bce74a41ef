"""The main job under a real kubelet: pods that ask with an annotation, on a node with eight NICs."""

import json

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, execute, phase, pod, start

KEY = "rdma.noderesource.dev/pod"


def links(cluster: Cluster) -> list[tuple[str, str, str]]:
    """Names, addresses and MTUs of the node's links but for those of pods, as `ip` tells them."""
    found = json.loads(cluster.nodes["n1"].machine.run("ip", "-j", "address"))
    return sorted(
        (link["ifname"], json.dumps(link["addr_info"]), str(link["mtu"]))
        for link in found
        if not link.get("link_netnsid") or not link["ifname"].startswith("veth")
    )


def test_a_pod_gets_its_nics_and_the_node_gets_them_back(cluster: Cluster) -> None:
    before = links(cluster)
    start(cluster, pod("two", annotations={KEY: "[{count: 2, mode: exclusive, interface: {name: fab%d}}]"}))
    nodes = execute(cluster, "two", "ls /dev/infiniband").split()
    assert nodes[0] == "rdma_cm"
    assert len(nodes) == 3
    assert {"fab0", "fab1"} <= set(execute(cluster, "two", "ls /sys/class/net").split())
    assert len(links(cluster)) == len(before) - 2
    delete(cluster, "two")
    assert links(cluster) == before


def test_a_refusal_is_an_event_of_the_pod(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", given=pod("greedy", annotations={KEY: "[{count: 9, mode: exclusive}]"}))
    cluster.wait("the refusal", lambda: any("DEVICES-EXHAUSTED" in it for it in events(cluster, "greedy")))
    assert phase(cluster, "greedy") == "Pending"
    assert "DEVICES-EXHAUSTED" in cluster.nodes["n1"].nri_rdma("status")
    delete(cluster, "greedy")
