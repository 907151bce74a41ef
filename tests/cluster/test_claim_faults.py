"""Claims of our own driver on two nodes, through kills and a reboot: each pod has exactly its devices, or waits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import START_S, delete, execute, pod, runs, start
from tests.cluster.test_claims import (
    CONFIG,
    claim_spec,
    claiming,
    device_class,
    mac_of,
    macs,
    make,
    named,
    needs_1_36,
    published,
    slices,
    template,
    verbs,
)
from tests.rig.deadline import wait_until

NODES = 2
__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
RESOURCE = "rdma/rdma_shared_device_a"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the devices of both nodes are published."""
    wait_until(lambda: len(published(cluster)) == 16, "the nodes' ResourceSlices", 30)
    make(cluster, device_class(extendedResourceName=RESOURCE))
    return cluster


def on(node: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The same pod for one node only."""
    asked["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    return asked


def test_each_node_has_its_slice_and_a_job_has_its_devices_on_both(served: Cluster) -> None:
    assert sorted(it["spec"]["nodeName"] for it in slices(served)) == ["n1", "n2"]
    make(served, template("rail", claim_spec({"nic": {"count": 8}})))
    for node in ("n1", "n2"):
        start(served, on(node, claiming(f"worker-{node}", {"rdma": "rail"})))
        assert verbs(served, f"worker-{node}") == list(range(8))
    for node in ("n1", "n2"):
        delete(served, f"worker-{node}")


@needs_1_36
def test_a_resource_in_the_limits_is_a_claim(served: Cluster) -> None:
    start(served, on("n1", pod("limits", containers=[{"resources": {"limits": {RESOURCE: 2}}}, {}])))
    assert len(verbs(served, "limits")) == 2
    assert verbs(served, "limits", "c1") == []
    assert "RDMA_DEVICES_CONTAINER_0_REQUEST_0=" in execute(served, "limits", "env")
    delete(served, "limits")


def test_a_daemon_that_is_killed_again_and_again_loses_no_claim_and_gives_no_device_twice(served: Cluster) -> None:
    node = served.nodes["n1"]
    names = [f"k{number}" for number in range(4)]
    for number, name in enumerate(names):
        served.kubectl("create", "-f", "-", given=on("n1", claiming(name, {"rdma": "one"})))
        if number % 2:
            served.wait("a prepared claim", lambda: _prepared(served) > number // 2, 60)  # noqa: B023
        node.kill("nri-rdma")
        node.start_driver()
    for name in names:
        served.wait(name, lambda: runs(served, name), START_S)  # noqa: B023
    found = [verbs(served, name) for name in names]
    assert sorted(it for one in found for it in one) == sorted({it for one in found for it in one})
    assert [len(one) for one in found] == [1] * 4
    for name, (number,) in zip(names, found, strict=True):
        assert mac_of(number) in macs(served, name)
    for name in names:
        served.kubectl("delete", "pod", name, "--wait=false")
    for name in names:
        served.kubectl("wait", "--for=delete", f"pod/{name}", "--timeout=90s")
    start(served, on("n1", claiming("all", {"rdma": "rail"})))
    assert verbs(served, "all") == list(range(8))
    delete(served, "all")


def _prepared(cluster: Cluster) -> int:
    """How many claims of ours have a CDI spec on the node."""
    listed = cluster.nodes["n1"].machine.run("sh", "-c", "ls /var/run/cdi 2>/dev/null || true")
    return listed.count("-claim-")


@pytest.fixture(autouse=True, scope="module")
def templates(served: Cluster) -> None:
    """What several tests ask for."""
    make(served, template("one", claim_spec({"nic": {}})))


def test_after_a_reboot_template_named_and_shared_claims_are_served_again(served: Cluster) -> None:
    make(served, named("kept", claim_spec({"nic": {}})), named("both", claim_spec({"nic": {}}, {"mode": "shared"})))
    asked = {"made": claiming("made", {"rdma": "one"})}
    for name, claim in (("kept", "kept"), ("s1", "both"), ("s2", "both")):
        asked[name] = claiming(name, {"rdma": ""})
        asked[name]["spec"]["resourceClaims"] = [{"name": "rdma", "resourceClaimName": claim}]
    for it in asked.values():
        it["spec"]["restartPolicy"] = "Always"
        start(served, on("n1", it))
    before = {name: verbs(served, name) for name in asked}
    served.reboot("n1")
    for name in asked:
        served.wait(f"{name} after the reboot", lambda: _runs_again(served, name), 120)  # noqa: B023
    assert {name: verbs(served, name) for name in asked} == before
    for name in ("made", "kept"):
        assert mac_of(before[name][0]) in macs(served, name)
    for name in asked:
        delete(served, name)


def _runs_again(cluster: Cluster, name: str) -> bool:
    """Whether the container of a pod runs since the reboot."""
    (status,) = cluster.get("pod", name)["status"].get("containerStatuses") or [{}]
    return status.get("restartCount", 0) > 0 and "running" in status.get("state", {})
