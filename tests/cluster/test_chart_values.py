"""What an install does with values that a cluster shows to be wrong, and with a changed configuration."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.helm import IMAGE_ARCHIVE, NAMESPACE, Helm
from tests.rig.deadline import wait_until

IMAGES = [IMAGE_ARCHIVE]
VALUES = {"config": {"pools": {"rails": {"select": {"device": "mlx5_0"}, "modes": ["exclusive"]}}}}
DAEMONS = "--selector=app.kubernetes.io/component=daemon"
SHARING = {"config": {"pools": {"rails": {"select": {"device": "mlx5_0"}, "modes": ["shared"]}}}}


@pytest.fixture(scope="module")
def helm(cluster: Cluster) -> Helm:
    """helm for that cluster."""
    return Helm(cluster)


def daemons(cluster: Cluster) -> set[str]:
    """The daemon's pods by their uid."""
    found = cluster.get("pods", "-n", NAMESPACE, DAEMONS)
    return {it["metadata"]["uid"] for it in found["items"]}


def left(cluster: Cluster) -> set[str]:
    """Objects of the chart; a Job's pods are its own."""
    kinds = "daemonsets,jobs,configmaps,serviceaccounts,roles,rolebindings,clusterroles,mutatingadmissionpolicies"
    names = set(cluster.kubectl("get", kinds, "-A", "-o", "name").split())
    pods = cluster.get("pods", "-n", NAMESPACE, "--selector=!job-name")["items"]
    return {it for it in names if "rdma" in it} | {it["metadata"]["name"] for it in pods}


def test_preflight_ends_an_install_that_a_node_lacks_something_for(cluster: Cluster, helm: Helm) -> None:
    """With one table, which is all that is left then. A node that lacks nothing gets its daemon."""
    asked = {**VALUES, "preflight": True}
    told = helm.upgrade({**asked, "nriSocket": "/var/run/nri/wrong.sock"}, fails=True)
    assert "Nothing was installed or changed." in told
    logs = ("logs", "-n", NAMESPACE, "job/nri-rdma-preflight")
    table = cluster.kubectl(*logs)
    print(table)
    (line,) = (it for it in table.splitlines() if "NRI socket" in it)
    assert line.split()[:2] == ["n1", "problem"]
    wait_until(lambda: left(cluster) == {"job.batch/nri-rdma-preflight"}, "the rest to be gone", 60)
    for _without_and_with_a_daemon in range(2):
        helm.upgrade(asked)
        assert len(daemons(cluster)) == 1
        table = cluster.kubectl(*logs)
        print(table)
        assert "1 node: 0 problems" in table
    helm.uninstall()
    wait_until(lambda: left(cluster) == {"job.batch/nri-rdma-preflight"}, "all but the table to be gone", 60)


def test_an_install_with_a_wrong_socket_of_nri_fails(cluster: Cluster, helm: Helm) -> None:
    """The daemon runs, and tries again and again: only its readiness says that it serves no pod."""
    told = helm.upgrade({**VALUES, "nriSocket": "/var/run/nri/wrong.sock"}, "--timeout=45s", fails=True)
    assert "Error" in told
    (pod,) = cluster.get("pods", "-n", NAMESPACE, DAEMONS)["items"]
    (state,) = pod["status"]["containerStatuses"]
    assert (state["ready"], state["restartCount"]) == (False, 0)
    assert "disconnected" in helm.daemon("status", fails=True)
    assert "nri-rdma runs on each node" in helm.upgrade(VALUES)


def test_a_changed_configuration_restarts_the_daemon_and_is_used(cluster: Cluster, helm: Helm) -> None:
    before = daemons(cluster)
    helm.upgrade(VALUES)
    assert daemons(cluster) == before
    helm.upgrade(SHARING)
    wait_until(lambda: len(daemons(cluster)) == 1, "the old daemon to be gone", 60)
    assert daemons(cluster).isdisjoint(before)
    assert "rails: shared" in helm.daemon("status")


def test_of_two_kinds_that_choose_one_node_the_second_stays_pending(cluster: Cluster, helm: Helm) -> None:
    before = daemons(cluster)
    kinds = [{"name": "default"}, {"name": "twice"}]
    assert "Error" in helm.upgrade({**SHARING, "nodes": kinds}, "--timeout=30s", fails=True)
    found = cluster.get("pods", "-n", NAMESPACE, "--selector=nri-rdma/nodes=twice")["items"]
    assert [it["status"]["phase"] for it in found] == ["Pending"]
    assert before <= daemons(cluster)
    # helm forgets what an upgrade made that failed.
    cluster.kubectl("delete", "daemonset", "nri-rdma-twice", "-n", NAMESPACE, "--wait=true", "--timeout=60s")
    helm.upgrade(SHARING)
    wait_until(lambda: daemons(cluster) == before, "the second kind's pod to be gone", 60)


def test_a_second_release_is_refused(cluster: Cluster, helm: Helm) -> None:
    before = daemons(cluster)
    told = helm("install", "second", "deploy/helm/nri-rdma", "--namespace", "other", "--create-namespace", fails=True)
    assert "nri-rdma is installed already, by release nri-rdma in namespace nri-rdma" in told
    assert "Next: upgrade that release" in told
    assert daemons(cluster) == before
