"""Pools and rules on a real containerd: what it says of a pod decides, and what pods have outlives a reload."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.doors.control.daemon_client import ask_status
from tests.rig.containerd import Containerd
from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import described_mac, look
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
CONFIG = """\
[pools.rails]
select = { numaNode = 1 }
exclude = { device = "mlx5_4" }
modes = ["exclusive"]

[pools.storage]
select = { device = "mlx5_0" }
modes = ["shared"]

[[rules]]
name = "training"
namespaces = ["train-*"]
podLabels = { team = "ml" }
pools = ["rails"]
interface = []

[[rules]]
name = "everybody"
pools = ["storage"]
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def daemon(containerd: Containerd, node: Fabric, config: Path) -> Iterator[Daemon]:
    """A daemon on the node "eight" with these pools and rules."""
    with Daemon(containerd, node, extra=("--config", str(config))) as running:
        yield running


def refusal(cri: Cri, name: str, **pod: object) -> str:
    with pytest.raises(CriError) as caught:
        cri.run_pod(name, **pod)  # type: ignore[arg-type] # the test's own keywords
    return str(caught.value)


@pytest.mark.usefixtures("daemon")
def test_a_pod_gets_from_a_pool_what_namespace_and_labels_let_it(
    host_equal: None, node: Fabric, cri: Cri, config: Path
) -> None:
    rails = {POD: "rails"}
    told = refusal(cri, "web", namespace="web", labels={"team": "ml"}, annotations=rails)
    assert "nri-rdma: POLICY-DENIED: no rule lets a pod of namespace web ask pool rails" in told
    assert "POLICY-DENIED" in refusal(cri, "stranger", namespace="train-1", annotations=rails)
    shaped = {POD: "{pool: rails, interface: {mtu: 4200}}"}
    told = refusal(cri, "shape", namespace="train-1", labels={"team": "ml"}, annotations=shaped)
    assert f"POLICY-INTERFACE: rule training ({config}:10) does not permit interface.mtu" in told
    pod = cri.run_pod("train", namespace="train-1", labels={"team": "ml"}, annotations=rails)
    assert look(cri, cri.run_container(pod, "main")).macs["rdma0"] == described_mac(node, "rail5")
    shared = cri.run_pod("web", namespace="web", annotations={POD: "storage"})
    assert set(look(cri, cri.run_container(shared, "main")).nodes) == {"uverbs0", "rdma_cm"}
    cri.delete_pod(shared)
    cri.delete_pod(pod)


def test_a_reload_is_for_pods_that_come(host_equal: None, cri: Cri, daemon: Daemon, config: Path) -> None:
    pod = cri.run_pod("train", namespace="train-1", labels={"team": "ml"}, annotations={POD: "rails"})
    config.write_text('[pools.other]\nmodes = ["exclusive"]\n')
    os.kill(ask_status(daemon.state_dir / "control.sock")["daemon"]["pid"], signal.SIGHUP)
    wait_until(
        lambda: [it["name"] for it in ask_status(daemon.state_dir / "control.sock")["pools"]] == ["other"],
        "the new pools",
    )
    assert "POOL-UNKNOWN" in refusal(
        cri, "late", namespace="train-1", labels={"team": "ml"}, annotations={POD: "rails"}
    )
    assert "rdma0" in look(cri, cri.run_container(pod, "main")).macs
    cri.delete_pod(pod)
