"""The same RayCluster where a share gives one HCA: of either pool the one next to a GPU of the pod."""

from tests.cluster.cluster import Cluster
from tests.cluster.pods import execute
from tests.cluster.test_kuberay import config, operator, pods_of, uverbs
from tests.rig.node import load

__all__ = ["operator"]  # a fixture

CONFIG = config("one")
UUIDS = [gpu.uuid for gpu in load("eight").gpus]
"""The GPU of each HCA, by its number: they share a PCIe switch."""


def test_head_and_workers_have_the_hca_of_either_pool_that_is_next_to_a_gpu_of_theirs(cluster: Cluster) -> None:
    for name in pods_of(cluster):
        container = "ray-head" if "-head" in name else "ray-worker"
        told = execute(cluster, name, "echo $NVIDIA_VISIBLE_DEVICES", container).strip().split(",")
        gpus = {UUIDS.index(uuid) for uuid in told}
        first, second = uverbs(cluster, name)
        print(f"{name}: GPUs {sorted(gpus)}, HCAs {first} and {second}")
        assert first in (gpus & set(range(4)) or set(range(4)))
        assert second in (gpus & set(range(4, 8)) or set(range(4, 8)))
