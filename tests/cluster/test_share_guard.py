"""The guard of shares harms nobody else: daemon dead and hook deleted, plain pods start, those with a share wait."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, pod, start
from tests.cluster.test_share_restarts import late
from tests.cluster.test_shares import CONFIG as SHARES
from tests.cluster.test_shares import A, allocatable, devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

OURS = PROJECT / "hooks/nri-rdma-hook"
HOOK = PROJECT / ".cache/cluster/hook/nri-rdma-hook"
CONFIG = SHARES.replace(str(OURS), str(HOOK))
HOOK.parent.mkdir(parents=True, exist_ok=True)
for name in ("nri_rdma_hook.py", OURS.name):
    shutil.copy(OURS.with_name(name), HOOK.parent)


@pytest.fixture(autouse=True)
def copied(cluster: Cluster) -> Iterator[Path]:
    """A hook of the test's own, which it may delete."""
    wait_until(lambda: allocatable(cluster, A) == "8", "the node's shares", 60)
    yield HOOK
    shutil.copy(OURS, HOOK)


def test_with_the_daemon_dead_and_the_hook_deleted_only_containers_with_shares_wait(cluster: Cluster) -> None:
    cluster.kubectl("create", "-f", "-", given=late("shares"))
    node = cluster.nodes["n1"]
    cluster.wait(
        "its first container",
        lambda: (
            "running" in cluster.get("pod", "shares")["status"].get("initContainerStatuses", [{}])[0].get("state", {})
        ),
    )
    node.kill("nri-rdma")
    HOOK.unlink()
    start(cluster, pod("plain"))
    template = {"metadata": {"labels": {"app": "network"}}, "spec": pod("", hostNetwork=True)["spec"]}
    spec = {"selector": {"matchLabels": {"app": "network"}}, "template": template}
    made = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "network"}, "spec": spec}
    cluster.kubectl("create", "-f", "-", given=made)
    ready = ("get", "daemonset", "network", "-o=jsonpath={.status.numberReady}")
    cluster.wait("the pod of the DaemonSet", lambda: cluster.kubectl(*ready) == "1")
    wait_until(lambda: any("nri-rdma-hook" in it for it in events(cluster, "shares")), "the runtime's refusal", 60)
    assert not runs(cluster, "shares")
    shutil.copy(OURS, HOOK)
    node.start_daemon()
    cluster.wait("the container with a share", lambda: runs(cluster, "shares"), 60)
    assert len(devices(cluster, "shares")) == 2
    cluster.kubectl("delete", "daemonset", "network", "--wait=true")
    for name in ("plain", "shares"):
        delete(cluster, name)


def runs(cluster: Cluster, name: str) -> bool:
    """Whether the container of a pod runs. The phase is Running also while it is made again and again."""
    statuses = cluster.get("pod", name)["status"].get("containerStatuses", [{}])
    return "running" in statuses[0].get("state", {})
