"""Other plugins on the same runtime: somebody else's that wants our device path, and a second one of ours."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rig.cri import Cri, CriError
from tests.rig.daemon import PROJECT, Daemon
from tests.rig.expect import look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.foreign_plugin import ForeignPlugin
from tests.rig.launched_daemon import LaunchedDaemon
from tests.rig.launcher import install
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime]

ASKS = {"rdma.noderesource.dev/pod": "- {match: {device: mlx5_2}}"}
PATH = "/dev/infiniband/uverbs2"
ELSE = (7, 7)


@pytest.mark.parametrize("index", ["10", "95"], ids=["before us", "after us"])
def test_the_runtime_refuses_a_container_whose_device_another_plugin_sets_too_and_names_both(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, daemon: Daemon, index: str
) -> None:
    pod = cri.run_pod("contested", annotations=ASKS)
    with ForeignPlugin(runtime.nri_socket, index, PATH, ELSE) as other:
        for _ in range(2):
            with pytest.raises(CriError) as refused:
                cri.create_container(pod, "main")
        known = {(it.path, it.major, it.minor) for it in other.seen[0].container.linux.devices}
        assert ((PATH, *_number(node, "uverbs2")) in known) == (index == "95"), "who comes later sees what came before"
    assert '"90-nri-rdma"' in refused.value.text
    assert f'"{index}-foreign"' in refused.value.text
    # The word is "Devices" from some version of NRI on.
    assert re.search(f"both tried to set [Dd]evices? {PATH}$", refused.value.text)
    assert cri.containers(pod) == ()
    (sandbox,) = daemon.status()["sandboxes"]
    assert [(it["container"], it["answers"]) for it in sandbox["unstarted"]] == [("main", 2)]
    assert look(cri, cri.run_container(pod, "main")).nodes["uverbs2"] == tree_number(node, "uverbs2")
    cri.delete_pod(pod)
    daemon.wait_given_back()


def test_another_rdma_device_at_our_path_is_refused_by_us(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, daemon: Daemon
) -> None:
    pod = cri.run_pod("hidden", annotations=ASKS)
    told = pytest.raises(CriError, match=f"nri-rdma: PATH-CONFLICT: {PATH} of the container is .* of mlx5_3")
    with ForeignPlugin(runtime.nri_socket, "10", PATH, _number(node, "uverbs3")), told:
        cri.create_container(pod, "main")
    cri.delete_pod(pod)
    daemon.wait_given_back()


@pytest.mark.usefixtures("daemon")
def test_an_earlier_plugin_that_gives_the_same_device_is_no_trouble(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri
) -> None:
    with ForeignPlugin(runtime.nri_socket, "10", PATH, _number(node, "uverbs2")):
        pod = cri.run_pod("agreed", annotations=ASKS)
        assert look(cri, cri.run_container(pod, "main")).nodes["uverbs2"] == tree_number(node, "uverbs2")
        cri.delete_pod(pod)


def test_a_second_daemon_says_who_serves_the_runtime_and_ends(
    host_equal: None, runtime: Runtime, node: Fabric, cri: Cri, daemon: Daemon, tmp_path: Path
) -> None:
    flags = ("--nri-socket", str(runtime.nri_socket), "--state-dir", str(tmp_path / "elsewhere"))
    trees = ("--sysfs-root", str(node.sysfs), "--dev-root", str(node.dev))
    command = [sys.executable, "-m", "nri_rdma", "run", *flags, *trees]
    second = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert f"nri-rdma: STATE-LOCKED: another daemon (pid {daemon.pid}) answers this runtime" in second.stderr
    pod = cri.run_pod("served", annotations=ASKS)
    assert look(cri, cri.run_container(pod, "main")).nodes["uverbs2"] == tree_number(node, "uverbs2")
    cri.delete_pod(pod)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program, as runtimes start it."""
    return install(tmp_path_factory.mktemp("venv"))


@contextmanager
def started_by(runtime: Runtime, node: Fabric, program: Path, **settings: object) -> Iterator[LaunchedDaemon]:
    """The runtime starts anew and tries to start a daemon with these settings; later it starts without."""
    tried = LaunchedDaemon(runtime, node, program, settings)
    tried.install()
    try:
        runtime.restart()
        yield tried
    finally:
        tried.stop()


@pytest.mark.usefixtures("cri")
def test_a_daemon_that_the_runtime_starts_beside_one_that_serves_gives_way(
    host_equal: None, runtime: Runtime, node: Fabric, daemon: Daemon, program: Path
) -> None:
    with started_by(runtime, node, program) as second:
        daemon.wait_synchronized(times=2)
        assert f"nri-rdma: STATE-LOCKED: another daemon (pid {daemon.pid}) " in told(runtime, second)
        assert look_at_new_pod(runtime.cri) == tree_number(node, "uverbs2")


@pytest.mark.usefixtures("cri")
def test_a_setting_that_cannot_be_used_keeps_neither_the_daemon_nor_the_runtime_from_serving_pods(
    host_equal: None, runtime: Runtime, node: Fabric, program: Path
) -> None:
    """Runtimes before NRI 0.7 would end with the plugin."""
    with started_by(runtime, node, program, memlock="lots") as tried:
        runtime.cri.run_container(runtime.cri.run_pod("plain"), "main")
        assert look_at_new_pod(runtime.cri) is not None
        assert "nri-rdma: SETTING: memlock = 'lots' cannot be used" in told(runtime, tried)


def told(runtime: Runtime, tried: LaunchedDaemon) -> str:
    """What a daemon that the runtime has started says: in the runtime's log, or in its own where the runtime would
    end."""
    return tried.log + runtime.log_path.read_text()


def look_at_new_pod(cri: Cri) -> str | None:
    """The number of uverbs2 in a pod that asks for its device."""
    pod = cri.run_pod("new", annotations=ASKS)
    number = look(cri, cri.run_container(pod, "main")).nodes.get("uverbs2")
    cri.delete_pod(pod)
    return number


def _number(node: Fabric, name: str) -> tuple[int, int]:
    major, _, minor = tree_number(node, name).partition(":")
    return int(major), int(minor)
