"""Docker after `nri-rdma install docker` where daemon.json names our runtime, and where no dockerd runs."""

import pytest

from tests.oci.conftest import require_docker
from tests.oci.docker import RUNTIME, Docker
from tests.oci.host import Host
from tests.oci.test_annotations import FIFTH, asks, refused
from tests.oci.test_install import DOCKER, OCI_RUNTIME, SHIM, assert_refused, bare, install

__all__ = ["bare"]
pytestmark = pytest.mark.root


@pytest.fixture(autouse=True)
def has_docker(host: Host) -> None:
    """These tests are for a host with Docker."""
    require_docker(host)


def test_as_dockers_default_runtime_it_serves_all_containers_and_stays(host_equal: None, host: Host) -> None:
    install(host, DOCKER.name)
    with Docker(host, **{"default-runtime": RUNTIME}) as docker:
        assert docker.must(*docker.run("--rm", command=["echo", "it runs"])) == "it runs\n"
        assert "nri-rdma: DAEMON-ABSENT: " in refused(docker, *asks(docker, [FIFTH]))
        assert_refused(host.nri_rdma("uninstall", DOCKER.name), RUNTIME, "default-runtime", "--force")


def test_a_name_in_daemon_json_serves_too_and_its_containers_are_known(host_equal: None, host: Host) -> None:
    install(host, DOCKER.name)
    with Docker(host, "rdma", runtimes={"rdma": {"path": OCI_RUNTIME}}) as docker:
        assert docker.must(*docker.run("--name", "trainer", command=["echo", "it runs"])) == "it runs\n"
        assert "nri-rdma: DAEMON-ABSENT: " in refused(docker, *asks(docker, [FIFTH]))
        assert_refused(host.nri_rdma("uninstall", DOCKER.name), "trainer (does not run)")
        docker.remove_all()


def test_without_shim_or_runc_no_container_with_the_runtime_starts(host_equal: None, host: Host) -> None:
    install(host, DOCKER.name)
    with Docker(host, RUNTIME) as docker:
        for path in (OCI_RUNTIME, SHIM):
            host.file(path).unlink()
            done = docker(*docker.run("--rm", command=["echo", "it runs"]))
            assert (done.returncode != 0, done.stdout) == (True, ""), path
            assert ("run `nri-rdma install docker`" in done.stderr) == (path == OCI_RUNTIME), done.stderr
            install(host, DOCKER.name)
        assert docker.must(*docker.run("--rm", command=["echo", "it runs"])) == "it runs\n"


def test_where_systemd_makes_cgroups_runc_is_told_so_as_by_docker_itself(host_equal: None, host: Host) -> None:
    """This host has no systemd: a runc that is not told makes a cgroup with that name."""
    install(host, DOCKER.name)
    systemd = {"exec-opts": ["native.cgroupdriver=systemd"], "cgroup-parent": "box.slice"}
    with Docker(host, RUNTIME, **systemd) as docker:
        ours = docker(*docker.run("--rm"))
        theirs = docker(*(it.replace(RUNTIME, "runc") for it in docker.run("--rm")))
    assert "cannot use systemd cgroups manager" in theirs.stderr
    assert (ours.returncode, ours.stderr) == (theirs.returncode, theirs.stderr)


def test_without_dockerd_what_is_there_is_removed(host: Host) -> None:
    install(host, DOCKER.name)
    done = host.nri_rdma("uninstall", DOCKER.name)
    assert (done.returncode, host.file(SHIM).exists()) == (0, False), done.stderr
    assert "Not known whether containers have the runtime nri-rdma.v1" in done.stderr
