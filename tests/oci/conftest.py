"""A host for each suite; only for who has namespaces of its own (python -m tests.oci)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.oci.docker import RUNTIME, Docker
from tests.oci.host import Host, Podman
from tests.oci.roots import BOOKWORM, FORKY, TRIXIE, Suite
from tests.rig.daemon import EXCLUSIVE_FIRST, Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.fixtures import host_equal
from tests.rig.node import load

__all__ = ["host_equal"]

RUN = "NRI_RDMA_OCI"
"""The environment's variable that python -m tests.oci sets."""
collect_ignore_glob = [] if RUN in os.environ else ["test_*.py"]
Engine = Podman | Docker
_SUITES = {suite.name: suite for suite in (BOOKWORM, TRIXIE, FORKY)}


@pytest.fixture(scope="session")
def node() -> Iterator[Fabric]:
    """The node "eight"."""
    with Fabric(load("eight")) as fabric:
        yield fabric


@pytest.fixture(scope="session", params=os.environ.get(RUN, "").split(",") or [""])
def host(request: pytest.FixtureRequest, node: Fabric, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host of each suite that was asked for."""
    suite: Suite = _SUITES[request.param]
    with Host(suite.root, tmp_path_factory.mktemp(suite.name), node) as made:
        yield made


@pytest.fixture(scope="session", params=["runc", "crun"])
def podman(request: pytest.FixtureRequest, host: Host) -> Podman:
    """podman with each OCI runtime."""
    return Podman(host, request.param)


@pytest.fixture(scope="module")
def installed(host: Host) -> Iterator[None]:
    """podman is set up for annotations, as an administrator does it. No container that asks may be left at its end."""
    with set_up(host, Podman.name):
        yield


@pytest.fixture(scope="module", params=["podman-runc", "podman-crun", "docker"])
def any_engine(request: pytest.FixtureRequest, host: Host) -> Iterator[Engine]:
    """podman with each OCI runtime; Docker where the suite has it, for containers with nri-rdma's runtime."""
    name, _, oci_runtime = request.param.partition("-")
    if name == Podman.name:
        yield Podman(host, oci_runtime)
        return
    require_docker(host)
    with Docker(host, RUNTIME) as running:
        yield running


@pytest.fixture
def engine(podman: Podman) -> Engine:
    """The engine of a module's containers."""
    return podman


@pytest.fixture
def daemon(host: Host, engine: Engine, node: Fabric) -> Iterator[Daemon]:
    """The daemon, on a host without a runtime with NRI. What a test leaves of containers is removed before it ends."""
    running = Daemon(host, node, extra=EXCLUSIVE_FIRST)
    start(running)
    try:
        yield running
        if not running.runs:
            start(running)
        engine.remove_all()
    finally:
        if running.runs:
            running.stop()


def require_docker(host: Host) -> None:
    """Skip a test where there is no Docker that reads CDI specs and takes the name of a shim."""
    if not host.file("/usr/sbin/dockerd").exists():
        pytest.skip("this suite's root folder has no Docker that is new enough")


@contextmanager
def set_up(host: Host, engine: str) -> Iterator[None]:
    """Have an engine call the hook for containers with annotations."""
    host.remove_hook()
    done = host.nri_rdma("install", engine)
    assert done.returncode == 0, done.stderr
    yield
    done = host.nri_rdma("uninstall", engine)
    assert done.returncode == 0, done.stderr
    host.put_hook()


def start(daemon: Daemon) -> None:
    """Start the daemon and wait until hooks can ask it."""
    daemon.start_process()
    wait_until(lambda: " started " in daemon.log, lambda: f"the daemon to start; its log:\n{daemon.log}", 15)
