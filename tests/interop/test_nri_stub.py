"""The runtime's side of our NRI, held against plugins made of nri's own Go stub: the newest and an old one.

What the fake runtime and such a plugin agree on is what our plugin, held against the same fake, agrees on with Go.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any  # Any: the plugin's JSON

import pytest

from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.interop.conftest import GoProgram
from tests.rig.deadline import wait_until

EXTERNAL_TIMEOUT_S = 30.0
POD = nri.PodSandbox(id="p1", name="pod")
CONTAINER = nri.Container(id="c1", pod_sandbox_id="p1", name="main")


@pytest.fixture(params=["stub", "old-stub"])
def stub(request: pytest.FixtureRequest, go_program: GoProgram) -> Path:
    """The plugin's program, with nri 0.12 and with 0.8."""
    return go_program(request.param)


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[FakeRuntime]:
    with FakeRuntime(tmp_path / "nri.sock", nri_version="v0.12.0") as runtime:
        yield runtime


class Plugin:
    """A running plugin, and the file in which it tells."""

    def __init__(self, output: Path) -> None:
        self._output = output

    def told(self) -> list[dict[str, Any]]:
        """Everything so far: what it was told stands here before it answers."""
        return [json.loads(line) for line in self._output.read_text().splitlines()]

    def events(self) -> list[str]:
        """The same, each as one line."""
        return [" ".join(filter(None, (e["event"], e.get("pod"), e.get("container")))) for e in self.told()]


@contextmanager
def outside(stub: Path, runtime: FakeRuntime, folder: Path) -> Iterator[Plugin]:
    """A plugin that connects to the runtime's socket by itself."""
    output = folder / "told"
    with (
        output.open("wb") as stdout,
        (folder / "stub.log").open("wb") as stderr,
        subprocess.Popen([stub, folder / "nri.sock"], stdout=stdout, stderr=stderr) as process,
    ):
        try:
            runtime.accept(EXTERNAL_TIMEOUT_S)
            yield Plugin(output)
        finally:
            runtime.disconnect()
            process.terminate()


@contextmanager
def launched(stub: Path, runtime: FakeRuntime, output: Path) -> Iterator[Plugin]:
    """A plugin as a runtime starts it: the connection is descriptor 3, the environment holds three variables."""
    ours, theirs = socket.socketpair()
    environment = {"NRI_PLUGIN_NAME": "inside", "NRI_PLUGIN_IDX": "07", "NRI_PLUGIN_SOCKET": "3"}
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    with theirs:
        actions = [*null, (os.POSIX_SPAWN_DUP2, theirs.fileno(), 3)]
        pid = os.posix_spawn(stub, ["07-inside"], environment, file_actions=actions)
    try:
        runtime.configuration.config = os.fspath(output)
        runtime.adopt(ours, EXTERNAL_TIMEOUT_S)
        yield Plugin(output)
    finally:
        runtime.disconnect()
        os.waitpid(pid, 0)  # it ends with its connection


def test_a_plugin_that_the_runtime_starts_is_taken_through_its_start(
    stub: Path, runtime: FakeRuntime, tmp_path: Path
) -> None:
    runtime.pods, runtime.containers = [POD], [CONTAINER]
    with launched(stub, runtime, tmp_path / "told") as plugin:
        assert runtime.registration is not None
        assert (runtime.registration.plugin_name, runtime.registration.plugin_idx) == ("inside", "07")
        assert runtime.events == 0x2F  # Run, Stop, RemovePodSandbox, Create, StartContainer
        configured, synchronized = plugin.told()
        assert (configured["runtime"], configured["version"]) == ("containerd", "v2.1.9")
        assert synchronized == {"event": "Synchronize", "pods": 1, "containers": 1, "last_pod": "p1"}


def test_a_plugin_from_outside_registers_by_its_own_name(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    with outside(stub, runtime, tmp_path) as plugin:
        assert runtime.registration is not None
        assert (runtime.registration.plugin_name, runtime.registration.plugin_idx) == ("outside", "42")
        assert plugin.events() == ["Configure", "Synchronize"]


def test_configure_may_come_before_registering_is_answered(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    runtime.configure_first = True
    with outside(stub, runtime, tmp_path) as plugin:
        assert plugin.events() == ["Configure", "Synchronize"]


def test_more_pods_than_one_message_holds_arrive_in_parts(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    runtime.pods = [nri.PodSandbox(id=f"p{n}", annotations={"a": "x" * 10_000}) for n in range(600)]
    runtime.containers = [nri.Container(id=f"c{n}", env=["E=" + "y" * 1000]) for n in range(900)]
    assert sum(pod.ByteSize() for pod in runtime.pods) > 4 << 20
    runtime.sync_chunk = 300
    with outside(stub, runtime, tmp_path) as plugin:
        (synchronized,) = (event for event in plugin.told() if event["event"] == "Synchronize")
        assert (synchronized["pods"], synchronized["containers"]) == (600, 900)
        assert synchronized["last_pod"] == "p599"


@pytest.mark.parametrize(
    ("program", "own_rpcs"),
    [("old-stub", False), ("stub", False), ("stub", True)],
    ids=["old, StateChange", "StateChange", "own calls"],
)
def test_the_life_of_a_pod_is_told_as_the_plugins_age_wants_it(
    go_program: GoProgram, runtime: FakeRuntime, tmp_path: Path, program: str, own_rpcs: bool
) -> None:
    runtime.own_rpcs = own_rpcs
    with outside(go_program(program), runtime, tmp_path) as plugin:
        runtime.run_pod_sandbox(POD)
        runtime.create_container(POD, CONTAINER)
        runtime.start_container(POD, CONTAINER)
        runtime.stop_pod_sandbox(POD)
        runtime.remove_pod_sandbox(POD)
        assert plugin.events()[2:] == [
            "RunPodSandbox p1",
            "CreateContainer p1 c1",
            "StartContainer p1 c1",
            "StopPodSandbox p1",
            "RemovePodSandbox p1",
        ]


def test_a_method_that_an_old_plugin_lacks_is_unimplemented(
    go_program: GoProgram, runtime: FakeRuntime, tmp_path: Path
) -> None:
    """By this a runtime of nri 0.12 knows that it has to send StateChange."""
    runtime.own_rpcs = True
    with outside(go_program("old-stub"), runtime, tmp_path), pytest.raises(RpcError) as caught:
        runtime.run_pod_sandbox(POD)
    assert (caught.value.code, caught.value.message) == (Code.UNIMPLEMENTED, "method RunPodSandbox")


def test_adjustments_and_updates_of_a_container_come_back(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    annotations = {"env": "1", "device": "/dev/infiniband/uverbs0", "update": "c9"}
    with outside(stub, runtime, tmp_path):
        answer = runtime.create_container(nri.PodSandbox(id="p1", annotations=annotations), CONTAINER)
    assert [(pair.key, pair.value) for pair in answer.adjust.env] == [("FROM_GO", "1")]
    (device,) = answer.adjust.linux.devices
    assert (device.path, device.type, device.major, device.minor) == ("/dev/infiniband/uverbs0", "c", 231, 192)
    (update,) = answer.update
    assert (update.container_id, update.linux.resources.cpu.shares.value) == ("c9", 123)


@pytest.mark.parametrize("size", [0, 4000, 4096, 70_000, 3_000_000])
def test_messages_of_every_size_pass_the_multiplexer_both_ways(
    stub: Path, runtime: FakeRuntime, tmp_path: Path, size: int
) -> None:
    pod = nri.PodSandbox(id="p1", annotations={"env": "e" * size})
    with outside(stub, runtime, tmp_path):
        answer = runtime.create_container(pod, CONTAINER)
        runtime.run_pod_sandbox(POD)  # it is still there
    assert [len(pair.value) for pair in answer.adjust.env] == [size]


def test_a_plugins_error_is_a_status_and_it_stays(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    refused = nri.PodSandbox(id="p1", annotations={"refuse": "no device is free"})
    with outside(stub, runtime, tmp_path):
        with pytest.raises(RpcError) as caught:
            runtime.run_pod_sandbox(refused)
        assert (caught.value.code, caught.value.message) == (Code.UNKNOWN, "no device is free")
        with pytest.raises(RpcError, match="no device is free"):
            runtime.create_container(refused, CONTAINER)
        runtime.run_pod_sandbox(POD)


def test_a_plugins_own_calls_are_answered(stub: Path, runtime: FakeRuntime, tmp_path: Path) -> None:
    runtime.failed_updates = [nri.ContainerUpdate(container_id="c9")]
    with outside(stub, runtime, tmp_path) as plugin:
        runtime.start_container(nri.PodSandbox(id="p1", annotations={"update": "c9"}), CONTAINER)
        runtime.wait_for_updates()
        assert [update.container_id for update in runtime.updates[0].update] == ["c9"]
        answered = wait_until(lambda: plugin.told()[3:] or None, "its answer")
        assert answered == [{"event": "UpdateContainers", "containers": 1}]
