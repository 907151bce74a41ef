"""The RayCluster that users of KubeRay are told to create, under KubeRay's own operator: each pod asks for one share of
either pool, and has every HCA of both."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.programs import ensure_operator
from tests.cluster.test_shares import A, B, allocatable, devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until

GPUS = "nvidia.com/gpu-h800"
MANIFEST = Path(__file__).parent / "raycluster.yaml"


def config(gives: str) -> str:
    """Two pools of four HCAs each, of which a share gives one or all."""
    return f'guard_hook = "{PROJECT}/hooks/nri-rdma-hook"\n' + "".join(
        f"[pools.hcas-{name}]\nselect = {{ device = {[f'mlx5_{number}' for number in numbers]} }}\n"
        f'modes = ["shared"]\ndoor = "resource"\nresource = "{resource}"\nshares = 16\ngives = "{gives}"\n'
        for name, resource, numbers in (("a", A, range(4)), ("b", B, range(4, 8)))
    )


CONFIG = config("all")


@pytest.fixture(scope="module", autouse=True)
def operator(cluster: Cluster) -> Iterator[None]:
    """KubeRay's operator, with its definitions; the node has GPUs and an image with a ray that sleeps."""
    built = ensure_operator()
    for file in built.definitions:
        cluster.kubectl("create", "-f", str(file))
    node = cluster.nodes["n1"]
    node.start_gpus(GPUS)
    node.load_image("localhost/ray:1", {"bash": 'exec /bin/sh "$@"', "ray": "exec sleep 1000000"})
    wait_until(lambda: (allocatable(cluster, GPUS), allocatable(cluster, A)) == ("8", "16"), "the node's devices", 30)
    switches = {"ENABLE_INIT_CONTAINER_INJECTION": "false", "ENABLE_PROBES_INJECTION": "false"}
    asked = [str(built.program), "--enable-leader-election=false"]
    cluster.control.start("operator", *asked, environment={**os.environ, **cluster.environment, **switches})
    yield
    cluster.control.programs.pop("operator").end()


def pods_of(cluster: Cluster) -> list[str]:
    """Create the RayCluster; the names of its pods once all of them run."""
    cluster.kubectl("create", "-f", str(MANIFEST))
    wait_until(lambda: cluster.get("pods", "-l=ray.io/cluster")["items"], "the first pod", 60)

    def running() -> list[str] | None:
        found = cluster.get("pods", "-l=ray.io/cluster=raycluster-kuberay")["items"]
        names = [item["metadata"]["name"] for item in found if item["status"]["phase"] == "Running"]
        return names if len(names) == 3 else None

    return sorted(wait_until(running, "head and workers", 90))


def uverbs(cluster: Cluster, name: str) -> list[int]:
    """The numbers of the HCAs that the pod's container has."""
    container = "ray-head" if "-head" in name else "ray-worker"
    return sorted(int(it.removeprefix("uverbs")) for it in devices(cluster, name, container) if it != "rdma_cm")


def test_head_and_workers_have_every_hca_of_both_pools(cluster: Cluster) -> None:
    head, *workers = pods_of(cluster)
    assert "-head" in head
    assert [uverbs(cluster, name) for name in (head, *workers)] == [list(range(8))] * 3
    cluster.kubectl("delete", "raycluster", "raycluster-kuberay", "--wait=true")
    cluster.wait("the end", lambda: not cluster.get("pods")["items"])
