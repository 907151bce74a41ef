"""podman containers get their devices by annotations, as pods do, and the host is as before whatever ends them."""

import json
from collections.abc import Iterator

import pytest

from tests.oci.host import HOOKS, Host, Podman
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import LOOK, described_mac, host_link, read_seen, tree_number
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.usefixtures("installed")]

PREFIX = "rdma.noderesource.dev"


@pytest.fixture(scope="module")
def installed(host: Host) -> Iterator[None]:
    """The hooks folder."""
    folder = host.file("/etc/nri-rdma/hooks.d")
    folder.mkdir(parents=True, exist_ok=True)
    for stage, verb in (("precreate", "prepare"), ("createRuntime", "attach-prepared"), ("poststop", "return")):
        document = {
            "version": "1.0.0",
            "hook": {"path": f"{HOOKS}/nri-rdma-oci-hook", "args": ["nri-rdma-oci-hook", verb], "timeout": 15},
            "when": {"annotations": {r"^rdma\.noderesource\.dev(/.*)?$": ".*"}},
            "stages": [stage],
        }
        (folder / f"{stage}.json").write_text(json.dumps(document))
    dropins = host.file("/etc/containers/containers.conf.d")
    dropins.mkdir(exist_ok=True)
    conf = '[engine]\nhooks_dir = ["/usr/share/containers/oci/hooks.d", "/etc/nri-rdma/hooks.d"]\n'
    (dropins / "50-nri-rdma.conf").write_text(conf)
    yield
    (dropins / "50-nri-rdma.conf").unlink()


def asks(request: object) -> tuple[str, str]:
    """The option of a container that asks for this."""
    return "--annotation", f"{PREFIX}/pod={json.dumps(request)}"


FIFTH = {"name": "fast", "match": {"device": "mlx5_5"}, "mode": "exclusive", "memlock": "4Mi"}


@pytest.mark.parametrize("network", ["none", "bridge"])
def test_a_container_gets_node_netdev_memlock_and_environment(
    host_equal: None, daemon: Daemon, podman: Podman, node: Fabric, network: str
) -> None:
    script = f"{LOOK}\n(echo x > /dev/infiniband/uverbs5) 2>&1; true"
    done = podman(*podman.run("--rm", *asks([FIFTH]), command=["sh", "-c", script], network=network))
    assert done.returncode == 0, done.stderr
    seen = read_seen(done.stdout)
    assert seen.nodes == {"uverbs5": tree_number(node, "uverbs5"), "rdma_cm": tree_number(node, "rdma_cm")}
    assert seen.macs["rdma0"] == described_mac(node, "rail5")
    assert seen.memlock_kib == "4096"
    assert seen.env["NCCL_IB_HCA"] == "=mlx5_5"
    assert seen.env["RDMA_DEVICES_FAST"] == "mlx5_5"
    assert seen.env["RDMA_NETDEVS_FAST"] == "rdma0"
    assert "uverbs5: No such device or address" in done.stdout, "it may be opened: no driver is behind it here"


def wait_home() -> None:
    wait_until(lambda: host_link("rail5"), "the netdev to be home")
