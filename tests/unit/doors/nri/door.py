"""The NRI door of a daemon without kernel and runtime: a runner on a real socket, and what tests say to it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import Request
from tests.fakes.runtime import FakeRuntime
from tests.unit.rigs.inside_daemon import InsideDaemon

ASKS = {"rdma.noderesource.dev": "[{match: {device: mlx5_3}}]"}
SOON = 20.0


class GatedPlugin(Plugin):
    """Holds every CreateContainer until the test opens the gate; fails with a bug when told to."""

    gate = threading.Event()
    entered = threading.Event()
    broken: Exception | None = None

    def answer(self, request: Request) -> bytes:
        if request.method == "CreateContainer":
            self.entered.set()
            assert self.gate.wait(SOON)
            if self.broken is not None:
                raise self.broken
        return super().answer(request)


class Door:
    """A runner in a thread of its own, on the inside of a daemon."""

    def __init__(self, inside: InsideDaemon, socket_path: Path) -> None:
        self.inside = inside
        self.socket_path = socket_path
        self.plugins: list[GatedPlugin] = []
        self.facts: list[RuntimeFacts] = []
        self.before_plugin: Callable[[], None] = lambda: None
        GatedPlugin.gate, GatedPlugin.entered, GatedPlugin.broken = threading.Event(), threading.Event(), None
        GatedPlugin.gate.set()
        self.runner = Runner(str(socket_path), self._make, name="nri-rdma", index="90")
        self.thread = threading.Thread(target=self.runner.run)

    def _make(self, _pid: int) -> Plugin:
        self.before_plugin()
        self.plugins.append(GatedPlugin(self.inside.engine, self.inside.spans, self._synchronized))
        return self.plugins[-1]

    def _synchronized(self, facts: RuntimeFacts) -> None:
        self.facts.append(facts)
        self.runner.synchronized()


@pytest.fixture
def door(daemon: InsideDaemon) -> Iterator[Door]:
    with TemporaryDirectory(prefix="nri-") as folder:
        made = Door(daemon, Path(folder) / "nri.sock")
        yield made
        GatedPlugin.gate.set()
        made.runner.stop()
        if made.thread.ident is not None:
            made.thread.join(SOON)
            assert not made.thread.is_alive()


def connected(door: Door, **options: object) -> FakeRuntime:
    runtime = FakeRuntime(door.socket_path, **options)  # type: ignore[arg-type] # the test's own keywords
    if door.thread.ident is None:
        door.thread.start()
    runtime.accept(SOON)
    return runtime


def make_pod(inside: InsideDaemon, name: str = "one", annotations: dict[str, str] | None = None) -> nri.PodSandbox:
    path = f"/run/netns/{name}"
    namespace = inside.world.add_namespace(path)
    inside.world.add_link(namespace, "lo")
    pod = nri.PodSandbox(id=f"sandbox-{name}", name=name, uid=f"uid-{name}", namespace="default")
    pod.annotations.update(ASKS if annotations is None else annotations)
    pod.linux.namespaces.add(type="network", path=path)
    return pod


def create(runtime: FakeRuntime, pod: nri.PodSandbox) -> nri.CreateContainerResponse:
    return runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))


def started(door: Door) -> tuple[FakeRuntime, nri.PodSandbox]:
    """A runtime that is connected, and a pod that it has started."""
    runtime = connected(door)
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    return runtime, pod
