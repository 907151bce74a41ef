"""Docker containers get their devices by the same CDI spec with hooks, and the host is as before whatever ends them."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from tests.oci.conftest import require_docker
from tests.oci.docker import Docker
from tests.oci.host import Host
from tests.oci.test_podman import DEVICE, SLEEP, START_S, generate, wait_home
from tests.rig.daemon import Daemon
from tests.rig.expect import LOOK, described_mac, host_link, read_seen, tree_number
from tests.rig.fabric import Fabric

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def docker(host: Host, node: Fabric) -> Iterator[Docker]:
    """Docker, where the suite has a release that reads CDI specs."""
    require_docker(host)
    generate(host, node)
    with Docker(host) as running:
        yield running


@pytest.fixture
def engine(docker: Docker) -> Docker:
    """The engine of this module's containers."""
    return docker


def test_a_container_gets_node_netdev_memlock_and_environment(
    host_equal: None, daemon: Daemon, docker: Docker, node: Fabric
) -> None:
    script = (
        f"{LOOK}\n(echo x > /dev/infiniband/uverbs5) 2>&1; mknod /tmp/other c 231 196; (echo x > /tmp/other) 2>&1; true"
    )
    done = docker(*docker.run("--rm", *DEVICE, command=["sh", "-c", script]))
    assert done.returncode == 0, done.stderr
    seen = read_seen(done.stdout)
    assert seen.nodes == {"uverbs5": tree_number(node, "uverbs5"), "rdma_cm": tree_number(node, "rdma_cm")}
    assert seen.macs["rail5"] == described_mac(node, "rail5")
    assert seen.memlock_kib == "4096"
    assert (seen.env["RDMA_DEVICES_MLX5_5"], seen.env["RDMA_NETDEVS_MLX5_5"]) == ("mlx5_5", "rail5")
    assert "uverbs5: No such device or address" in done.stdout
    assert "/tmp/other: Operation not permitted" in done.stdout


def test_a_stopped_container_gives_back_and_gets_again(host_equal: None, daemon: Daemon, docker: Docker) -> None:
    docker.must(*docker.run("-d", "--name", "again", *DEVICE, command=SLEEP))
    for _ in range(2):
        assert "rail5" in docker.must("exec", "again", "ls", "/sys/class/net").split()
        assert host_link("rail5") is None
        docker.must("stop", "-t", "0", "again")
        wait_home()
        docker.must("start", "again")
    docker.must("restart", "-t", "0", "again")
    assert "rail5" in docker.must("exec", "again", "ls", "/sys/class/net").split()
    docker.must("rm", "-f", "again")
    wait_home()


def test_a_killed_container_gives_back(host_equal: None, daemon: Daemon, docker: Docker) -> None:
    docker.must(*docker.run("-d", "--name", "killed", *DEVICE, command=SLEEP))
    os.kill(docker.inspect("killed")["State"]["Pid"], signal.SIGKILL)
    wait_home()


def test_a_command_that_does_not_exist_leaves_nothing(host_equal: None, daemon: Daemon, docker: Docker) -> None:
    done = docker(*docker.run("--rm", *DEVICE, command=["/bin/nosuch"]))
    assert done.returncode == 127, done.stderr
    wait_home()


def test_of_two_containers_that_want_a_device_one_is_refused(host_equal: None, daemon: Daemon, docker: Docker) -> None:
    docker.must(*docker.run("-d", *DEVICE, command=SLEEP))
    done = docker(*docker.run("--rm", *DEVICE))
    assert "nri-rdma: DEVICE-IN-USE: " in done.stderr
    assert done.returncode != 0


def test_a_container_on_the_hosts_network_is_refused(host_equal: None, daemon: Daemon, docker: Docker) -> None:
    done = docker(*docker.run("--rm", *DEVICE, network="host"))
    assert "nri-rdma: HOST-NETWORK: " in done.stderr
    assert done.returncode != 0


def test_without_the_daemon_no_container_starts(host_equal: None, docker: Docker) -> None:
    before = time.monotonic()
    done = docker(*docker.run("--rm", *DEVICE))
    took = time.monotonic() - before
    assert "nri-rdma: DAEMON-ABSENT: " in done.stderr
    assert done.returncode != 0
    assert took < 2 + START_S
