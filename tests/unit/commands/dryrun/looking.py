"""A dry run beside the inside of a daemon, on a runtime that is a fake."""

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from nri_rdma.attach.attachments import Attachments
from nri_rdma.cdi.registry import Registry
from nri_rdma.commands.dryrun.cli import Reporter
from nri_rdma.commands.dryrun.finding_out import FindingOut
from nri_rdma.commands.dryrun.onlooker import Onlooker
from nri_rdma.commands.dryrun.run import NoLimits, Unheard, patient, without_pause
from nri_rdma.commands.dryrun.verdicts import Attached, Verdicts
from nri_rdma.commands.explain.explanation import POD_LINKS
from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.specs import SpecCache
from nri_rdma.model.device import Node
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.wire import Request
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.rigs.attachments import BLOCKING
from tests.unit.rigs.inside_daemon import InsideDaemon
from tests.unit.rigs.policies import EXCLUSIVE_FIRST

POD = "rdma.noderesource.dev/pod"
SOON = 20.0


class Looking:
    """A dry run on the node "eight" of a fake kernel, and a runtime to tell it pods. What it prints is in `lines`."""

    def __init__(self, folder: Path, inside: InsideDaemon, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self._printed = ""
        self.inside = inside
        self.reservations = Reservations()
        self.attached: Attached = {}
        self.broken: Exception | None = None
        self.creating = threading.Event()
        self.before_read: Callable[[], None] = lambda: None
        self.reporter = Reporter(as_json=True)
        node = NodeCache(self._read)
        attachments = Attachments(
            FindingOut(Onlooker(inside.kernel, POD_LINKS), lambda known: known),
            inside.workers,
            on_gone=self.reservations.release,
            schedule=without_pause,
        )
        engine = Engine(
            node=node,
            policy=EXCLUSIVE_FIRST,
            reservations=self.reservations,
            specs=SpecCache(
                node=lambda: node.current, registry=lambda: Registry(devices={}), prefix="rdma.noderesource.dev"
            ),
            attachments=attachments,
            workers=inside.workers,
            readers=inside.workers,
            spans=Recorder(capacity=0),
            limits=NoLimits(),
            prefix="rdma.noderesource.dev",
            waits=patient(BLOCKING),
        )
        self.verdicts = Verdicts(engine, attachments, inside.workers, self.reporter, lambda: self.attached)
        self.runner = Runner(str(folder / "nri.sock"), self._make, name="nri-rdma-dry-run", index="89")
        self.runtime = FakeRuntime(folder / "nri.sock")
        self._thread = threading.Thread(target=self.runner.run)

    def connect(self) -> FakeRuntime:
        if self._thread.ident is None:
            self._thread.start()
        self.runtime.accept(SOON)
        return self.runtime

    def close(self) -> None:
        self.runner.stop()
        if self._thread.ident is not None:
            self._thread.join(SOON)
            assert not self._thread.is_alive()
        self.runtime.close()

    def pod(self, name: str, text: str | None, **fields: Any) -> nri.PodSandbox:
        """A pod of the runtime, whose namespace is only a file: nobody may open it as one."""
        path = self._folder / f"netns-{name}"
        path.touch()
        pod = nri.PodSandbox(id=f"sandbox-{name}", name=name, uid=f"uid-{name}", namespace="default", **fields)
        if text is not None:
            pod.annotations[POD] = text
        pod.linux.namespaces.add(type="network", path=str(path))
        return pod

    def create(self, pod: nri.PodSandbox, name: str = "main") -> nri.CreateContainerResponse:
        return self.runtime.create_container(pod, nri.Container(id=f"c-{name}", pod_sandbox_id=pod.id, name=name))

    @property
    def lines(self) -> list[dict[str, Any]]:
        self._printed += self._capsys.readouterr().out
        return [json.loads(line) for line in self._printed.splitlines()]

    def line(self, event: str, pod: str, container: str = "") -> Mapping[str, Any]:
        """The one line about that, which may come shortly after the runtime's answer."""
        wanted = (event, f"default/{pod}", container)

        def lines() -> list[dict[str, Any]]:
            return [it for it in self.lines if (it["event"], it["pod"], it.get("container", "")) == wanted]

        found = wait_until(lines, f"a line about {wanted}", SOON)
        assert len(found) == 1, self.lines
        return found[0]

    def _make(self, _pid: int) -> Unheard:
        plugin = Plugin(self.verdicts, Recorder(capacity=0), self._synchronized)
        return Unheard(_Broken(self, plugin))

    def _synchronized(self, _facts: RuntimeFacts) -> None:
        self.runner.synchronized()

    def _read(self) -> Node:
        self.before_read()
        return self.inside._read()


class _Broken:
    """A plugin with a bug, when the test says so."""

    def __init__(self, looking: Looking, plugin: Plugin) -> None:
        self._looking, self._plugin = looking, plugin

    def answer(self, request: Request) -> bytes:
        if request.method == "CreateContainer":
            self._looking.creating.set()
        if self._looking.broken is not None:
            raise self._looking.broken
        return self._plugin.answer(request)


def assert_true(value: bool) -> None:
    assert value
