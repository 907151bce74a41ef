"""Two nodes with shares: a drained node's pods go to the other one, and a job runs on both."""

from tests.cluster.cluster import Cluster
from tests.cluster.pods import execute, pod
from tests.cluster.test_shares import CONFIG as SHARES
from tests.cluster.test_shares import A
from tests.rig.deadline import wait_until

NODES = 2
CONFIG = SHARES


def shares_of(cluster: Cluster, name: str) -> str:
    return str(cluster.get("node", name)["status"]["allocatable"].get(A, ""))


def template(label: str) -> dict[str, object]:
    """A pod's template: a container with a share, and pods of one label on different nodes where that can be."""
    made = pod("", containers=[{"resources": {"limits": {A: 1}}}])
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": label}},
    }
    return {
        "metadata": {"labels": {"app": label}},
        "spec": {**made["spec"], "topologySpreadConstraints": [spread]},
    }


def running(cluster: Cluster, label: str) -> dict[str, str]:
    """The nodes of the pods with this label that run, and are not about to end, by name."""
    return {
        item["metadata"]["name"]: item["spec"]["nodeName"]
        for item in cluster.get("pods", f"-l=app={label}")["items"]
        if item["status"]["phase"] == "Running" and "deletionTimestamp" not in item["metadata"]
    }


def has_hca(cluster: Cluster, name: str) -> bool:
    found = execute(cluster, name, "ls /dev/infiniband").split()
    return len(found) == 2 and found[1].startswith("uverbs")


def test_a_drained_nodes_pods_have_their_shares_on_the_other(cluster: Cluster) -> None:
    wait_until(lambda: {shares_of(cluster, name) for name in ("n1", "n2")} == {"8"}, "the shares of both nodes", 60)
    selector = {"matchLabels": {"app": "served"}}
    spec = {"replicas": 4, "selector": selector, "template": template("served")}
    made = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "served"}, "spec": spec}
    cluster.kubectl("create", "-f", "-", given=made)
    cluster.wait("four pods", lambda: len(running(cluster, "served")) == 4, 60)
    assert set(running(cluster, "served").values()) == {"n1", "n2"}
    cluster.kubectl("drain", "n1", "--ignore-daemonsets", "--force", "--timeout=60s")
    cluster.wait("four pods on n2", lambda: list(running(cluster, "served").values()) == ["n2"] * 4, 60)
    assert all(has_hca(cluster, name) for name in running(cluster, "served"))
    wait_until(lambda: "0 of 8 shares given" in cluster.nodes["n1"].nri_rdma("status"), "what n1 gave to come back", 30)
    assert "4 of 8 shares given" in cluster.nodes["n2"].nri_rdma("status")
    cluster.kubectl("uncordon", "n1")
    cluster.kubectl("delete", "deployment", "served", "--wait=true")


def test_a_job_has_shares_on_both_nodes(cluster: Cluster) -> None:
    made = template("trained")
    made["spec"] = {**made["spec"], "restartPolicy": "Never"}  # type: ignore[dict-item]  # a template's spec
    spec = {"parallelism": 2, "completions": 2, "template": made}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "trained"}, "spec": spec}
    cluster.kubectl("create", "-f", "-", given=job)
    cluster.wait("both pods", lambda: len(running(cluster, "trained")) == 2, 60)
    found = running(cluster, "trained")
    assert set(found.values()) == {"n1", "n2"}
    assert all(has_hca(cluster, name) for name in found)
    cluster.kubectl("delete", "job", "trained", "--wait=true")
