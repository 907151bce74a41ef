"""Pods that ask by a resource, as for k8s-rdma-shared-dev-plugin: the kubelet counts shares, nri-rdma places them."""

from collections import Counter
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, execute, pod, start
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

A, B = "rdma/rdma_shared_device_a", "rdma/rdma_shared_device_b"
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"

[pools.hcas-a]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"] }}
modes = ["shared"]
door = "resource"
resource = "{A}"
shares = 8
gives = "one"

[pools.hcas-b]
select = {{ device = ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"] }}
modes = ["shared"]
door = "resource"
resource = "{B}"
shares = 4
gives = "all"
"""


def allocatable(cluster: Cluster, resource: str) -> str:
    """What the scheduler may give away of a resource."""
    return str(cluster.get("node", "n1")["status"]["allocatable"].get(resource, ""))


def sharing(name: str, **counts: int) -> dict[str, Any]:
    """A pod of one container with these shares."""
    return pod(name, containers=[{"resources": {"limits": {{"a": A, "b": B}[key]: n for key, n in counts.items()}}}])


def devices(cluster: Cluster, name: str, container: str = "c0") -> list[str]:
    """The nodes below /dev/infiniband that a container has."""
    return execute(cluster, name, "ls /dev/infiniband 2>/dev/null || true", container).split()


@pytest.fixture(scope="module", autouse=True)
def counted(cluster: Cluster) -> None:
    """The scheduler knows the shares: the node's status has them."""
    wait_until(lambda: (allocatable(cluster, A), allocatable(cluster, B)) == ("8", "4"), "the node's shares", 30)


def test_a_share_of_one_is_one_hca_and_a_share_of_all_is_every_hca_of_the_pool(cluster: Cluster) -> None:
    start(cluster, sharing("both", a=1, b=1))
    found = devices(cluster, "both")
    assert found[0] == "rdma_cm"
    uverbs = {name for name in found if name.startswith("uverbs")}
    assert len(uverbs) == 1 + 4
    assert uverbs > {"uverbs4", "uverbs5", "uverbs6", "uverbs7"}
    variables = execute(cluster, "both", "env")
    assert "RDMA_DEVICES_RDMA_SHARED_DEVICE_B=mlx5_4,mlx5_5,mlx5_6,mlx5_7" in variables
    delete(cluster, "both")


def test_only_the_container_that_asked_has_the_hca(cluster: Cluster) -> None:
    asked = pod("beside", containers=[{}, {"resources": {"limits": {A: 1}}}])
    start(cluster, asked)
    assert devices(cluster, "beside", "c0") == []
    assert len(devices(cluster, "beside", "c1")) == 2
    delete(cluster, "beside")


def test_an_init_container_has_a_device_for_its_share_too(cluster: Cluster) -> None:
    """The kubelet does not report init containers to anybody, and gives their shares to the others again."""
    asked = sharing("first", a=1)
    (main,) = asked["spec"]["containers"]
    look = "ls /dev/infiniband > /dev/termination-log"
    asked["spec"]["initContainers"] = [{**main, "name": "init", "command": ["sh", "-c", look]}]
    found = start(cluster, asked)
    told = found["status"]["initContainerStatuses"][0]["state"]["terminated"]["message"].split()
    assert told == devices(cluster, "first")
    assert len(told) == 2
    delete(cluster, "first")


def test_eight_shares_of_four_hcas_are_two_of_each_and_the_ninth_pod_waits(cluster: Cluster) -> None:
    names = [f"many-{number}" for number in range(8)]
    for name in names:
        start(cluster, sharing(name, a=1))
    given = Counter(found for name in names for found in devices(cluster, name) if found.startswith("uverbs"))
    assert given == {"uverbs0": 2, "uverbs1": 2, "uverbs2": 2, "uverbs3": 2}
    cluster.kubectl("create", "-f", "-", given=sharing("ninth", a=1))
    conditions = ("get", "pod", "ninth", '-o=jsonpath={.status.conditions[?(@.type=="PodScheduled")].message}')
    cluster.wait("the scheduler's answer", lambda: f"Insufficient {A}" in cluster.kubectl(*conditions))
    delete(cluster, names[3])
    cluster.wait("the ninth", lambda: cluster.get("pod", "ninth")["status"]["phase"] == "Running", 60)
    names[3] = "ninth"
    given = Counter(found for name in names for found in devices(cluster, name) if found.startswith("uverbs"))
    assert given == {"uverbs0": 2, "uverbs1": 2, "uverbs2": 2, "uverbs3": 2}
    for name in names:
        delete(cluster, name)


def test_a_plain_pod_has_nothing_and_an_annotation_cannot_ask_such_a_pool(cluster: Cluster) -> None:
    start(cluster, pod("plain"))
    assert devices(cluster, "plain") == []
    delete(cluster, "plain")
