"""NRI's own runtime side in Go (0.12.5) and our plugin that is late: with our failure policy the request
fails, without it a pod that asks starts bare. Either way nothing else waits."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nri_rdma.doors.nri.plugin import Plugin
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import Request
from tests.interop.conftest import GoProgram
from tests.interop.goruntime import GoRuntime, go_runtime
from tests.rig.daemon import Daemon
from tests.rig.deadline import wait_until
from tests.rig.fabric import Fabric
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.rigs.inside_daemon import InsideDaemon

ASKS = {"rdma.noderesource.dev": "1"}
TIMEOUT_S = 2.0
"""What the runtime gives to each request: its default."""
NEXT_POD_S = 5.0
LONGEST_S = 30.0


@dataclass(frozen=True)
class Place:
    """Where the daemon's process runs."""

    run: Path
    work: Path
    nri_socket: Path


class Slow:
    """The daemon's own handlers; while `held`, these events are not handled, as in a process that is stopped."""

    def __init__(self, plugin: Plugin, held: threading.Event, is_declared: bool) -> None:
        self._plugin, self._held, self._is_declared = plugin, held, is_declared

    def answer(self, request: Request) -> bytes:
        if request.method == "Configure":
            configured = nri.ConfigureResponse.FromString(self._plugin.answer(request))
            if not self._is_declared:
                configured.ClearField("failure_policy")
            answer: bytes = configured.SerializeToString()
            return answer
        if self._held.is_set() and request.method != "Synchronize":
            wait_until(lambda: not self._held.is_set(), "the test to go on", LONGEST_S)
        return self._plugin.answer(request)


class Connected:
    """A runtime and our plugin, which is connected to it, and again when it was dropped."""

    def __init__(self, runtime: GoRuntime, inside: InsideDaemon, socket: Path, is_declared: bool) -> None:
        self.runtime = runtime
        self._inside = inside
        self._held = threading.Event()
        self._pods = self._times = 0

        def handlers(_pid: int) -> Slow:
            plugin = Plugin(inside.engine, inside.spans, lambda _runtime: self._synchronized())
            return Slow(plugin, self._held, is_declared)

        self._runner = Runner(os.fspath(socket), handlers, name="nri-rdma", index="90")
        self._thread = threading.Thread(target=self._runner.run, name="runner")
        self._thread.start()
        self.await_plugin(1)

    def await_plugin(self, times: int) -> None:
        """Wait until runtimes have told it their pods that often."""
        wait_until(lambda: self._times >= times, "the plugin to be synchronized", LONGEST_S)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The plugin answers nothing meanwhile."""
        self._held.set()
        try:
            yield
        finally:
            self._held.clear()

    def drop(self) -> None:
        """End the plugin for good."""
        self._runner.stop()
        self._thread.join(LONGEST_S)

    def _synchronized(self) -> None:
        self._runner.synchronized()
        self._times += 1

    def namespace(self) -> str:
        """Make the network namespace of a pod."""
        self._pods += 1
        path = f"/run/netns/{self._pods}"
        namespace = self._inside.world.add_namespace(path)
        for interface in ("lo", "eth0"):
            self._inside.world.add_link(namespace, interface)
        return path


@pytest.fixture
def is_declared(request: pytest.FixtureRequest) -> bool:
    """Whether the plugin declares a failure policy."""
    return bool(getattr(request, "param", True))


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "nri.sock"


@pytest.fixture
def runtime(go_program: GoProgram, socket: Path, tmp_path: Path) -> Iterator[GoRuntime]:
    with go_runtime(go_program("runtime"), socket, tmp_path / "runtime.log", timeout_s=TIMEOUT_S) as running:
        yield running


@pytest.fixture
def connected(runtime: GoRuntime, socket: Path, tmp_path: Path, is_declared: bool) -> Iterator[Connected]:
    build_tree(load("eight"), tmp_path / "eight")
    with InsideDaemon(tmp_path / "d", tmp_path / "eight") as inside:
        connected = Connected(runtime, inside, socket, is_declared)
        try:
            yield connected
        finally:
            connected.drop()


@pytest.mark.parametrize("is_declared", [False, True], ids=["no policy", "our policy"], indirect=True)
def test_a_late_answer_fails_the_pod_with_our_policy_only_and_the_next_plain_pod_starts(
    connected: Connected, is_declared: bool
) -> None:
    runtime = connected.runtime
    assert runtime.tell("RunPodSandbox", "plain", netns=connected.namespace()).error == ""
    netns = connected.namespace()
    with connected.held():
        late = runtime.tell("RunPodSandbox", "late", ASKS, netns=netns)
        made = runtime.tell("CreateContainer", "late", ASKS, netns=netns, container="main")
        plain = runtime.tell("RunPodSandbox", "plain-2", netns=connected.namespace())
    print(f"late: {late}; the next plain pod: {plain.seconds * 1e3:.1f} ms")
    if is_declared:
        assert "plugin 90-nri-rdma failed to handle RunPodSandbox request" in late.error
    else:
        assert (late.error, made.error, made.devices) == ("", "", ()), "it starts bare, and nobody is told"
    assert plain.error == ""
    assert plain.seconds < NEXT_POD_S


def test_the_daemon_that_was_late_serves_the_kubelets_next_try(connected: Connected) -> None:
    runtime, netns = connected.runtime, connected.namespace()
    with connected.held():
        assert runtime.tell("RunPodSandbox", "first-try", ASKS, netns=netns).error
    connected.await_plugin(2)
    netns = connected.namespace()
    assert runtime.tell("RunPodSandbox", "second-try", ASKS, netns=netns).error == ""
    made = runtime.tell("CreateContainer", "second-try", ASKS, netns=netns, container="main")
    assert made.error == ""
    assert "/dev/infiniband/rdma_cm" in made.devices


@pytest.mark.parametrize("event", ["StopPodSandbox", "RemovePodSandbox"])
def test_stop_and_remove_fail_once_and_not_for_good(connected: Connected, event: str) -> None:
    """The runtime has dropped the plugin by their next try."""
    runtime = connected.runtime
    assert runtime.tell("RunPodSandbox", "pod", ASKS, netns=connected.namespace()).error == ""
    with connected.held():
        assert f"failed to handle {event} request" in runtime.tell(event, "pod").error
        again = runtime.tell(event, "pod")
    assert (again.error, again.seconds < TIMEOUT_S) == ("", True)


def test_a_plugin_that_is_gone_between_requests_fails_none(connected: Connected) -> None:
    """What the policy does not close: the guard does."""
    runtime = connected.runtime
    connected.drop()
    wait_until(lambda: "connection to plugin" in runtime.log.read_text(), "the runtime to notice", LONGEST_S)
    assert runtime.tell("RunPodSandbox", "bare", ASKS, netns=connected.namespace()).error == ""


@pytest.mark.root
def test_a_daemon_that_is_stopped_fails_the_pod_that_asks_and_serves_it_when_it_goes_on(
    runtime: GoRuntime, socket: Path, tmp_path: Path
) -> None:
    place = Place(run=tmp_path, work=tmp_path, nri_socket=socket)
    with Fabric(load("eight")) as node, Daemon(place, node, extra=()) as daemon:
        assert runtime.tell("RunPodSandbox", "plain").error == ""
        os.kill(daemon.pid, signal.SIGSTOP)
        try:
            late = runtime.tell("RunPodSandbox", "late", ASKS)
            plain = runtime.tell("RunPodSandbox", "plain-2")
        finally:
            os.kill(daemon.pid, signal.SIGCONT)
        assert "plugin 90-nri-rdma failed to handle RunPodSandbox request" in late.error
        assert (plain.error, plain.seconds < NEXT_POD_S) == ("", True)
        daemon.wait_synchronized(2)
        # It may have read the late pod's call when it went on; then it returns those devices, as no such pod is listed.
        wait_until(
            lambda: not any(it["holders"] for it in daemon.status()["devices"]), "the late pod's devices", LONGEST_S
        )
        assert runtime.tell("RunPodSandbox", "again", ASKS).error == ""
        made = runtime.tell("CreateContainer", "again", ASKS, container="main")
        assert made.devices == ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")
