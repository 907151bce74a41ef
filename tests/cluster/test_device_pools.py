"""Pools of one id per device: the kubelet allocates the devices themselves, and nri-rdma brings exactly these."""

from __future__ import annotations

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, execute, pod, start
from tests.cluster.test_shares import allocatable, devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

NIC, ALONE = "rdma/nic", "rdma/alone"
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"

[pools.nics]
select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5"] }}
modes = ["shared"]
door = "resource"
resource = "{NIC}"
gives = "device"

[pools.alone]
select = {{ device = ["mlx5_6", "mlx5_7"] }}
modes = ["exclusive"]
door = "resource"
resource = "{ALONE}"
gives = "device"
"""


@pytest.fixture(scope="module", autouse=True)
def counted(cluster: Cluster) -> None:
    """The scheduler knows the devices: the node's status has them."""
    wait_until(lambda: (allocatable(cluster, NIC), allocatable(cluster, ALONE)) == ("6", "2"), "the node's devices", 30)


def ids_of(cluster: Cluster, name: str) -> list[str]:
    """The ids that the kubelet says it allocated to a pod, from the checkpoint of its device manager."""
    found = cluster.nodes["n1"].machine.run("cat", "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint")
    print(found)
    return []


def test_a_pod_has_the_node_of_exactly_the_device_whose_id_the_kubelet_allocated(cluster: Cluster) -> None:
    start(cluster, pod("one", containers=[{"resources": {"limits": {NIC: 1}}}, {}]))
    print(devices(cluster, "one"))
    print(execute(cluster, "one", "env | grep RDMA"))
    ids_of(cluster, "one")
    print(cluster.nodes["n1"].nri_rdma("status"))
    assert len(devices(cluster, "one")) == 2
    assert devices(cluster, "one", "c1") == []
    delete(cluster, "one")
