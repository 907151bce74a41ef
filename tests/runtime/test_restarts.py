"""The daemon and the runtime end and start again, many times and in every way, while pods run."""

import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rig import footprint
from tests.rig.cri import Container, Cri, Sandbox
from tests.rig.daemon import AnyDaemon, Daemon
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.expect import described_mac, host_link, look, tree_number
from tests.rig.fabric import Fabric
from tests.rig.launched_daemon import LaunchedDaemon
from tests.rig.launcher import install
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime, pytest.mark.every_runtime, pytest.mark.timeout(1800)]

POD = "rdma.noderesource.dev/pod"
WAYS = (signal.SIGTERM, signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How often."""

    daemon: int
    runtime: int
    launched: int


SHORT, LONG = Times(daemon=10, runtime=2, launched=4), Times(daemon=200, runtime=20, launched=200)


@pytest.fixture
def times(pytestconfig: pytest.Config) -> Times:
    """Few for every run; many with --long."""
    return LONG if pytestconfig.getoption("--long") else SHORT


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A pod that runs, and what its containers have: device nodes, and MACs by the name of the link."""

    pod: Sandbox
    container: Container
    nodes: dict[str, str]
    macs: dict[str, str]


class Pods:
    """Two pods that have devices alone, one that shares one, and one that asked for nothing."""

    def __init__(self, runtime: Runtime, node: Fabric) -> None:
        self._runtime = runtime
        self._node = node
        self._alone = {"a": ("mlx5_0", "mlx5_1"), "b": ("mlx5_2", "mlx5_5")}
        asked = {
            name: "[" + ", ".join(f"{{match: {{device: {device}}}}}" for device in devices) + "]"
            for name, devices in self._alone.items()
        } | {"shared": "[{mode: shared, match: {device: mlx5_7}}]"}
        devices = self._alone | {"shared": ("mlx5_7",)}
        self._running = [self._start(name, text, devices[name]) for name, text in asked.items()]
        self._plain = runtime.cri.run_pod("plain")

    def check(self, number: int) -> None:
        """Every pod has what it had, and one in turn gets it, or nothing, for one more container."""
        cri = self._runtime.cri
        for it in self._running:
            assert _macs(cri, it.container) == it.macs
        for devices in self._alone.values():
            assert [host_link(_netdev(device)) for device in devices] == [None] * len(devices)
        turns = [*((it.pod, it.nodes) for it in self._running), (self._plain, {})]
        pod, nodes = turns[number % len(turns)]
        late = cri.run_container(pod, f"late-{number}")
        assert look(cri, late).nodes == nodes
        cri.stop_container(late)
        cri.remove_container(late)

    def delete(self) -> None:
        """Removes them all."""
        for it in self._running:
            self._runtime.cri.delete_pod(it.pod)
        self._runtime.cri.delete_pod(self._plain)

    def _start(self, name: str, text: str, devices: tuple[str, ...]) -> Running:
        cri = self._runtime.cri
        pod = cri.run_pod(name, annotations={POD: text})
        container = cri.run_container(pod, "main")
        nodes = [f"uverbs{device.removeprefix('mlx5_')}" for device in devices] + ["rdma_cm"]
        running = Running(
            pod=pod,
            container=container,
            nodes={node: tree_number(self._node, node) for node in nodes},
            macs=_macs(cri, container),
        )
        assert look(cri, container).nodes == running.nodes
        if name in self._alone:
            given = {f"rdma{place}": described_mac(self._node, _netdev(it)) for place, it in enumerate(devices)}
            assert given.items() <= running.macs.items()
        return running


@pytest.mark.usefixtures("cri")
def test_restarts_of_the_daemon_and_of_the_runtime_change_nothing_for_pods(
    host_equal: None, runtime: Runtime, node: Fabric, times: Times
) -> None:
    with Daemon(runtime, node) as daemon:
        before = footprint.settled(runtime, daemon)
        pods = Pods(runtime, node)
        for number in range(times.daemon):
            daemon.end(WAYS[number % 2])
            daemon.start()
            pods.check(number)
            if (number + 1) % (times.daemon // times.runtime) == 0:
                restart(runtime, WAYS[number // (times.daemon // times.runtime) % 2])
                daemon.wait_synchronized(times=2)
                pods.check(number)
        pods.delete()
        assert_given_back(before, runtime, daemon)


@pytest.mark.usefixtures("cri")
def test_restarts_of_the_runtime_and_of_the_daemon_that_it_starts_change_nothing_for_pods(
    host_equal: None, runtime: Runtime, node: Fabric, times: Times, program: Path
) -> None:
    """In turn the runtime ends and takes its daemon with it, or the daemon ends first and nobody starts it."""
    with LaunchedDaemon(runtime, node, program) as daemon:
        before = footprint.settled(runtime, daemon)
        pods = Pods(runtime, node)
        for number in range(times.launched):
            old = daemon.pid
            if number // 2 % 2:
                daemon.end(WAYS[number % 2])
            restart(runtime, WAYS[number % 2])
            daemon.wait_started(other_than=old)
            pods.check(number)
        pods.delete()
        assert_given_back(before, runtime, daemon)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The installed program, as runtimes start it."""
    return install(tmp_path_factory.mktemp("venv"))


def restart(runtime: Runtime, how: signal.Signals) -> None:
    """Ends the runtime with that signal and starts it."""
    if how == signal.SIGKILL:
        runtime.kill()
    else:
        runtime.terminate()
    runtime.start()


def assert_given_back(before: footprint.Footprint, runtime: Runtime, daemon: AnyDaemon) -> None:
    """Nothing of any pod is left: no descriptor, namespace or process, no journal, no sandbox, no holder."""
    wait_until(lambda: daemon.status()["sandboxes"] == [], "the daemon to have given everything back")
    with suppress(DeadlineError):
        wait_until(lambda: footprint.take(runtime, daemon) == before, "the footprint to be as before")
    assert footprint.take(runtime, daemon) == before
    status = daemon.status()
    assert status["namespaces_held"] == 0
    assert [it["name"] for it in status["devices"] if it["holders"]] == []
    assert status["unserved"] == []


def _macs(cri: Cri, container: Container) -> dict[str, str]:
    text = cri.exec(container, ["sh", "-c", "cd /sys/class/net; for i in *; do echo $i $(cat $i/address); done"]).stdout
    return dict(line.split() for line in text.splitlines())


def _netdev(device: str) -> str:
    """Node "eight" numbers both alike."""
    return f"rail{device.removeprefix('mlx5_')}"
