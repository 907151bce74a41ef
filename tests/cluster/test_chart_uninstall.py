"""`helm uninstall` is refused as long as pods have devices; then nothing of nri-rdma is left on node and in cluster."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.helm import IMAGE_ARCHIVE, NAMESPACE, RELEASE, WAIT, Helm
from tests.cluster.pods import delete, execute, pod, start
from tests.cluster.test_claims import claim_spec, claiming, make, template, verbs

IMAGES = [IMAGE_ARCHIVE]
POOLS = {
    "rails": {"select": {"device": ["mlx5_0", "mlx5_1"]}, "modes": ["exclusive", "shared"]},
    "hcas-a": {
        "select": {"device": "mlx5_2"},
        "modes": ["shared"],
        "door": "resource",
        "resource": "rdma/rdma_shared_device_a",
        "shares": 8,
    },
    "nics": {"select": {"device": ["mlx5_6", "mlx5_7"]}, "modes": ["exclusive"], "door": "claims"},
}
VALUES = {"config": {"pools": POOLS}}
KEY = "rdma.noderesource.dev/pod"
FOLDERS = (
    *("/run/nri-rdma", "/var/run/cdi", "/var/lib/nri-rdma", "/var/run/nri"),
    *(f"/var/lib/kubelet/{it}" for it in ("plugins", "plugins_registry", "device-plugins/nri-rdma*")),
)


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    """helm for that cluster."""
    return Helm(cluster)


def files(cluster: Cluster) -> list[str]:
    """Files of ours on the node."""
    found = cluster.nodes["n1"].machine.run("sh", "-c", f"find {' '.join(FOLDERS)} ! -type d 2>/dev/null; true")
    return [it for it in found.split() if it != "/var/run/nri/nri.sock"]


def nics(cluster: Cluster) -> str:
    """The node's NICs with addresses and routes, as `ip` tells them."""
    machine = cluster.nodes["n1"].machine
    told = machine.run(
        "sh", "-c", "ip -o link | grep rail; ip -o address | grep rail; ip route show table all | grep rail"
    )
    return "\n".join(sorted(line.partition(": ")[2] or line for line in told.splitlines()))


def test_with_pods_that_have_devices_it_is_refused_and_nothing_changes(cluster: Cluster, helm: Helm) -> None:
    helm.upgrade(VALUES)
    make(cluster, template("nic", claim_spec({"nic": {}})))
    start(cluster, pod("trainer", annotations={KEY: "[{pool: rails, mode: exclusive, interface: {name: fab0}}]"}))
    start(cluster, pod("sharer", containers=[{"resources": {"limits": {"rdma/rdma_shared_device_a": 1}}}]))
    start(cluster, claiming("claimer", {"rdma": "nic"}))
    before = cluster.get("pods", "-n", NAMESPACE)["items"][0]["metadata"]["uid"]
    told = helm("uninstall", "nri-rdma", "--namespace", NAMESPACE, fails=True)
    print(told)
    assert "3 pods have devices" in told
    for name in ("trainer", "sharer", "claimer"):
        assert f"default/{name} on n1" in told
        assert len(verbs(cluster, name)) == 1
    assert "fab0" in execute(cluster, "trainer", "ls /sys/class/net")
    assert before in {it["metadata"]["uid"] for it in cluster.get("pods", "-n", NAMESPACE)["items"]}
    assert helm.daemon("status").count("default/") >= 3
    assert "has no deployed releases" in helm.upgrade(VALUES, fails=True)
    helm("rollback", RELEASE, "1", "--namespace", NAMESPACE, "--wait", "--timeout", WAIT)
    helm.upgrade(VALUES)
    assert before in {it["metadata"]["uid"] for it in cluster.get("pods", "-n", NAMESPACE)["items"]}


def test_without_such_pods_nothing_is_left(cluster: Cluster, helm: Helm) -> None:
    for name in ("trainer", "sharer", "claimer"):
        delete(cluster, name)
    start(cluster, pod("plain"))
    before = nics(cluster)
    assert files(cluster)
    print(helm.uninstall())
    assert files(cluster) == []
    assert nics(cluster) == before
    left = cluster.get("resourceslices,deviceclasses,daemonsets,mutatingadmissionpolicies,clusterroles", "-A")["items"]
    assert [it["metadata"]["name"] for it in left if "rdma" in it["metadata"]["name"]] == []
    start(cluster, pod("later"))
    for name in ("plain", "later"):
        delete(cluster, name)


def test_it_can_be_installed_again_and_removed_by_force(cluster: Cluster, helm: Helm) -> None:
    """What the refusal says of --no-hooks: the pod keeps its devices, and another install takes over."""
    at_home = nics(cluster)
    helm.upgrade(VALUES)
    start(cluster, pod("trainer", annotations={KEY: "[{pool: rails, mode: exclusive, interface: {name: fab0}}]"}))
    helm.uninstall("--no-hooks")
    assert len(verbs(cluster, "trainer")) == 1
    assert any(it.startswith("/run/nri-rdma/journal") for it in files(cluster))
    helm.upgrade(VALUES)
    assert nics(cluster) != at_home
    delete(cluster, "trainer")
    cluster.wait("the NIC to be at home", lambda: nics(cluster) == at_home, 30)
    helm.uninstall()
    assert files(cluster) == []
