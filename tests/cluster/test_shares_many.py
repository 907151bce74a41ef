"""Sixty-four shares of eight NICs to sixty-four pods: none has more than its part, each pod's is next to its GPU."""

from collections import Counter

from tests.cluster.cluster import Cluster
from tests.cluster.pods import execute, pod
from tests.cluster.test_kuberay_one import UUIDS
from tests.cluster.test_shares import allocatable
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

SHARE, GPU = "rdma/hca", "nvidia.com/gpu"
PODS = 64
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"

[pools.hcas]
modes = ["shared"]
door = "resource"
resource = "{SHARE}"
shares = {PODS}
"""


def test_no_nic_is_over_its_count_and_each_pod_has_the_nic_next_to_its_gpu(cluster: Cluster) -> None:
    cluster.nodes["n1"].start_gpus(GPU, replicas=8)
    wait_until(lambda: (allocatable(cluster, SHARE), allocatable(cluster, GPU)) == ("64", "64"), "the devices", 60)
    limits = {SHARE: 1, GPU: 1}
    names = [f"p{number}" for number in range(PODS)]
    items = [pod(name, containers=[{"resources": {"limits": limits}}]) for name in names]
    cluster.kubectl("create", "-f", "-", given={"apiVersion": "v1", "kind": "List", "items": items})
    cluster.wait("all pods", lambda: _running(cluster) == PODS, 180)
    given: Counter[str] = Counter()
    for name in names:
        gpu, *nodes = execute(cluster, name, "echo $NVIDIA_VISIBLE_DEVICES; ls /dev/infiniband").split()
        (found,) = (it for it in nodes if it != "rdma_cm")
        assert found == f"uverbs{UUIDS.index(gpu)}", name
        given[found] += 1
    assert given == {f"uverbs{number}": 8 for number in range(8)}
    told = cluster.nodes["n1"].nri_rdma("status")
    assert f"{SHARE}: 64 of 64 shares given" in told


def _running(cluster: Cluster) -> int:
    return sum(item["status"]["phase"] == "Running" for item in cluster.get("pods")["items"])
