"""The variables of containers on a real runtime: libraries are told of what works, and of nothing that they must not
use."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import look
from tests.rig.fabric import Fabric
from tests.rig.node import Node, load
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
CONFIG = """\
[pools.rails]
select = { device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"] }
modes = ["exclusive", "shared"]
env = { NCCL_IB_TC = "106", UCX_IB_TRAFFIC_CLASS = "106" }

[pools.disks]
select = { device = "mlx5_6" }
modes = ["shared"]
use = "storage"

[pools.other-fabric]
select = { device = "mlx5_7" }
modes = ["shared"]
env = { NCCL_IB_TC = "41" }
"""
RAILS = """\
- {name: rails, pool: rails, match: {device: mlx5_1}}
- {name: more, pool: rails, match: {device: mlx5_2}}
- {name: disk, pool: disks}
"""
OURS = ("NCCL", "UCX", "NVSHMEM", "GLOO", "RDMA")


def with_port_down(described: Node, name: str) -> Node:
    """The node with this device's port down, as its cable is out: the netdev is still up."""
    return replace(
        described,
        rdma=tuple(
            replace(it, ports=tuple(replace(port, state="1: DOWN", phys_state="3: Disabled") for port in it.ports))
            if it.name == name
            else it
            for it in described.rdma
        ),
    )


@pytest.fixture(scope="module")
def node() -> Iterator[Fabric]:
    """The node "eight", where no data goes over mlx5_1."""
    with Fabric(with_port_down(load("eight"), "mlx5_1")) as fabric:
        yield fabric


@pytest.fixture
def daemon(runtime: Runtime, node: Fabric, tmp_path: Path) -> Iterator[Daemon]:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    with Daemon(runtime, node, extra=("--config", str(config))) as running:
        yield running


@pytest.mark.usefixtures("daemon")
def test_compute_and_storage_in_one_pod_with_a_port_down(host_equal: None, cri: Cri) -> None:
    pod = cri.run_pod("both", annotations={POD: RAILS})
    seen = look(cri, cri.run_container(pod, "main"))
    assert {name: value for name, value in seen.env.items() if name.startswith(OURS)} == {
        "NCCL_IB_HCA": "=mlx5_2",
        "UCX_NET_DEVICES": "mlx5_2:1,lo",
        "NVSHMEM_HCA_LIST": "mlx5_2:1",
        "NCCL_IB_GID_INDEX": "3",
        "UCX_IB_GID_INDEX": "3",
        "NCCL_SOCKET_IFNAME": "=eth0",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_IB_TC": "106",
        "UCX_IB_TRAFFIC_CLASS": "106",
        "RDMA_DEVICES_RAILS": "mlx5_1",
        "RDMA_NETDEVS_RAILS": "rdma0",
        "RDMA_DEVICES_MORE": "mlx5_2",
        "RDMA_NETDEVS_MORE": "rdma1",
        "RDMA_DEVICES_DISK": "mlx5_6",
    }
    assert {"uverbs1", "uverbs2", "uverbs6"} < seen.nodes.keys()
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_what_the_container_sets_itself_stays(host_equal: None, cri: Cri) -> None:
    own = dict.fromkeys(
        ("NCCL_IB_HCA", "UCX_NET_DEVICES", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "NCCL_IB_TC"), "mine"
    )
    pod = cri.run_pod("own", annotations={POD: RAILS})
    seen = look(cri, cri.run_container(pod, "main", env=own))
    assert {name: seen.env[name] for name in own} == own
    assert seen.env["UCX_IB_TRAFFIC_CLASS"] == "106"
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_the_first_request_of_each_container_has_number_0(host_equal: None, cri: Cri) -> None:
    shared = "{pool: rails, mode: shared, match: {device: mlx5_%d}}"
    annotations = {
        f"rdma.noderesource.dev/container.{name}": shared % number for name, number in (("left", 0), ("right", 2))
    }
    pod = cri.run_pod("two", annotations=annotations)
    for name, number, own in (("left", 0, {"RDMA_DEVICES_0"}), ("right", 2, {"RDMA_DEVICES_0", "RDMA_DEVICES_1"})):
        env = look(cri, cri.run_container(pod, name)).env
        told = {key: value for key, value in env.items() if key.startswith("RDMA_")}
        assert told == dict.fromkeys(own, f"mlx5_{number}")
        assert not any(key.endswith("SOCKET_IFNAME") for key in env), "nothing moved in"
    cri.delete_pod(pod)


@pytest.mark.usefixtures("daemon")
def test_two_fabrics_in_one_container_are_refused_at_the_pods_start(host_equal: None, cri: Cri) -> None:
    asked = "[{pool: rails, mode: shared%s}, {pool: other-fabric%s}]"
    with pytest.raises(CriError) as refused:
        cri.run_pod("mixed", annotations={POD: asked % ("", "")})
    assert "nri-rdma: POOL-ENV: " in refused.value.text
    assert "set NCCL_IB_TC differently: 106 and 41" in refused.value.text
    pod = cri.run_pod("apart", annotations={POD: asked % (", containers: [a]", ", containers: [b]")})
    values = [look(cri, cri.run_container(pod, name)).env["NCCL_IB_TC"] for name in ("a", "b")]
    assert values == ["106", "41"]
    cri.delete_pod(pod)
