"""What DRANET's end-to-end tests show of a driver that ends, under a real kubelet, of pods with an annotation."""

import json
from signal import SIGTERM

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, execute, pod, start
from tests.rig.deadline import wait_until
from tests.rig.scrape import Page, read_page

CONFIG = """\
allow_default_pool = true
metrics_address = "127.0.0.1:9178"
"""
KEY = "rdma.noderesource.dev/pod"
NETDEV = "[{match: {netdev: %s}, mode: exclusive, interface: {name: fab0, addresses: [169.254.169.13/24]}}]"


def asking(name: str, netdev: str) -> dict[str, object]:
    return pod(name, annotations={KEY: NETDEV % netdev})


def holders(cluster: Cluster) -> set[str]:
    """The pods that the daemon has devices for."""
    status = json.loads(cluster.nodes["n1"].nri_rdma("status", "-o", "json"))
    return {it["pod"].split("/")[-1] for it in status["sandboxes"] if it["moves"]}


def journal(cluster: Cluster) -> list[str]:
    """What of pods is on the node's disk for the next daemon."""
    return cluster.nodes["n1"].machine.run("sh", "-c", "ls /run/nri-rdma/journal").split()


def namespaces(cluster: Cluster) -> list[str]:
    """The network namespaces of the node's pods."""
    return cluster.nodes["n1"].machine.run("sh", "-c", "ls /run/netns").split()


def has_socket(cluster: Cluster) -> bool:
    return not cluster.nodes["n1"].machine.run("sh", "-c", "test -S /run/nri-rdma/control.sock || echo no")


def scraped(cluster: Cluster, by: str) -> Page:
    """What a pod on the host's network reads of the daemon."""
    return read_page(execute(cluster, by, "busybox wget -q -O - http://127.0.0.1:9178/metrics"))


def test_a_pod_on_the_hosts_network_reads_the_metrics_of_its_node(cluster: Cluster) -> None:
    start(cluster, pod("scraper", hostNetwork=True))
    assert execute(cluster, "scraper", "busybox wget -q -O - http://127.0.0.1:9178/healthz") == "ok\n"
    before = scraped(cluster, "scraper")
    assert before.value("process_start_time_seconds") > 0
    start(cluster, asking("asks", "rail4"))
    page = scraped(cluster, "scraper")
    starts = "nri_rdma_nri_requests_total"
    assert before.value(starts, method="RunPodSandbox", outcome="done") == 0
    assert page.value(starts, method="RunPodSandbox", outcome="done") == 1
    assert page.value("nri_rdma_attached_pods") == len(holders(cluster)) == 1
    assert page.by("nri_rdma_refusals_total", "code").keys() <= {"NOT-READY"}
    delete(cluster, "asks")
    delete(cluster, "scraper")


def test_a_pod_that_is_applied_again_has_the_netdev_again(cluster: Cluster) -> None:
    for _ in range(2):
        start(cluster, asking("again", "rail4"))
        assert "169.254.169.13/24" in execute(cluster, "again", "ip address show dev fab0")
        delete(cluster, "again")


def test_a_daemon_that_is_terminated_leaves_its_pods_their_netdevs_and_no_socket(cluster: Cluster) -> None:
    node = cluster.nodes["n1"]
    start(cluster, asking("stays", "rail4"))
    assert has_socket(cluster)
    node.kill("nri-rdma", SIGTERM)
    assert not has_socket(cluster)
    assert "169.254.169.13/24" in execute(cluster, "stays", "ip address show dev fab0")
    node.start_daemon()
    assert has_socket(cluster)
    assert holders(cluster) == {"stays"}
    delete(cluster, "stays")
    assert journal(cluster) == []


def test_a_pod_that_is_deleted_while_the_daemon_is_away_is_forgotten_when_it_is_back(cluster: Cluster) -> None:
    """A veth ends with the namespace of its pod; a NIC comes home (tests/lab)."""
    node = cluster.nodes["n1"]
    start(cluster, asking("gone", "rail5"))
    node.kill("nri-rdma", SIGTERM)
    cluster.kubectl("delete", "pod", "gone", "--force", "--grace-period=0", "--wait=true")
    wait_until(lambda: not namespaces(cluster), "the end of its namespace", 60)
    assert len(journal(cluster)) == 1
    node.start_daemon()
    wait_until(lambda: journal(cluster) == [], "the pod to be forgotten", 20)
    assert holders(cluster) == set()
    start(cluster, asking("next", "rail4"))
    assert "169.254.169.13/24" in execute(cluster, "next", "ip address show dev fab0")
    delete(cluster, "next")
