"""Containers that ask by annotations, where dockerd ends and starts again."""

import signal
from collections.abc import Iterator

import pytest

from tests.oci.conftest import require_docker, set_up, start
from tests.oci.docker import RUNTIME, Docker
from tests.oci.host import Host
from tests.oci.test_annotations import FIFTH, SLEEP, asks, in_container, wait_home
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.expect import host_link
from tests.rig.fabric import Fabric

pytestmark = pytest.mark.root
NAME = "trainer"


@pytest.fixture
def daemon(host: Host, node: Fabric) -> Iterator[Daemon]:
    """The daemon on a host with Docker that is set up."""
    require_docker(host)
    with set_up(host, Docker.name):
        running = Daemon(host, node, extra=EXCLUSIVE_FIRST)
        start(running)
        try:
            yield running
        finally:
            if running.runs:
                running.stop()


def run(docker: Docker) -> None:
    docker.must(*docker.run("-d", "--restart", "always", "--name", NAME, *asks(docker, [FIFTH]), command=SLEEP))


def status(docker: Docker) -> str:
    found: str = docker.inspect(NAME)["State"]["Status"]
    return found


def test_a_container_with_a_restart_policy_has_its_device_again(host_equal: None, daemon: Daemon, host: Host) -> None:
    with Docker(host, RUNTIME) as docker:
        run(docker)
        docker.restart(signal.SIGTERM, wait_home)
        wait_until(lambda: status(docker) == "running", "Docker to start the container again")
        assert "rdma0" in in_container(docker, NAME)
        docker.remove_all()


def test_a_container_that_outlives_dockerd_keeps_its_device(host_equal: None, daemon: Daemon, host: Host) -> None:
    with Docker(host, RUNTIME, **{"live-restore": True}) as docker:
        run(docker)
        docker.restart(signal.SIGKILL)
        assert (host_link("rail5"), status(docker)) == (None, "running")
        assert "rdma0" in in_container(docker, NAME)
        docker.remove_all()
        wait_home()


def test_one_that_is_refused_when_dockerd_starts_waits_for_somebody_to_start_it(
    host_equal: None, daemon: Daemon, host: Host
) -> None:
    """Docker does not try again; the container does not start without its device."""
    with Docker(host, RUNTIME) as docker:
        run(docker)
        docker.restart(signal.SIGTERM, daemon.kill)
        wait_until(lambda: "nri-rdma: DAEMON-ABSENT: " in docker.inspect(NAME)["State"]["Error"], "Docker to give up")
        start(daemon)
        assert status(docker) == "exited"
        docker.must("start", NAME)
        assert "rdma0" in in_container(docker, NAME)
        docker.remove_all()
