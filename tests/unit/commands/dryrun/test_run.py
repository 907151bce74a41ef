"""A dry run decides as the daemon does, tells the runtime nothing, and changes nothing."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nri_rdma.attach.attachments import Attachments
from nri_rdma.cdi.registry import Registry
from nri_rdma.commands.cli.dry_run import Reporter
from nri_rdma.commands.dryrun.onlooker import Onlooker
from nri_rdma.commands.dryrun.run import NoLimits, Unheard, dry_identity, patient, without_pause
from nri_rdma.commands.dryrun.tasks import FindingOut
from nri_rdma.commands.dryrun.verdicts import Attached, Verdicts
from nri_rdma.commands.explain import POD_LINKS
from nri_rdma.config.settings import Settings
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import Rule, policy_of
from nri_rdma.doors.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.doors.nri.runner import Runner
from nri_rdma.engine.engine import Engine
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.node_cache import NodeSource
from nri_rdma.engine.reservations import Allocations
from nri_rdma.model.device import Node
from nri_rdma.model.request import Mode
from nri_rdma.model.usage import HostSocket
from nri_rdma.observe.spans import Recorder
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.attach.rig import BLOCKING
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.commands.cli.program import assert_one_error, nri_rdma

POD = "rdma.noderesource.dev/pod"
SOON = 5.0


class Looking:
    """A dry run on the node "eight" of a fake kernel, and a runtime to tell it pods. What it prints is in `lines`."""

    def __init__(self, folder: Path, inside: InsideDaemon, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self._printed = ""
        self.inside = inside
        self.allocations = Allocations()
        self.attached: Attached = {}
        self.broken: Exception | None = None
        self.creating = threading.Event()
        self.before_read: Callable[[], None] = lambda: None
        self.reporter = Reporter(as_json=True)
        node = NodeSource(self._read)
        attachments = Attachments(
            FindingOut(Onlooker(inside.kernel, POD_LINKS), lambda known: known),
            inside.workers,
            on_gone=self.allocations.release,
            schedule=without_pause,
        )
        engine = Engine.make(
            node=node,
            policy=policy_of((), (), allow_default_pool=True),
            reservations=self.allocations,
            evidence=EvidenceCollector(
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
        """The one line about that."""
        found = [
            it
            for it in self.lines
            if (it["event"], it["pod"], it.get("container", "")) == (event, f"default/{pod}", container)
        ]
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

    def answer(self, request: Any) -> bytes:
        if request.method == "CreateContainer":
            self._looking.creating.set()
        if self._looking.broken is not None:
            raise self._looking.broken
        return self._plugin.answer(request)


@pytest.fixture
def looking(daemon: InsideDaemon, capsys: pytest.CaptureFixture[str]) -> Iterator[Looking]:
    """It ends with the fake host as it was before, and nothing written."""
    with TemporaryDirectory(prefix="nri-") as folder:
        before = daemon.world.snapshot()
        made = Looking(Path(folder), daemon, capsys)
        yield made
        made.close()
        assert daemon.world.snapshot() == before
        assert daemon.world.held == 0
        assert list((daemon.settings.state_dir / "journal").iterdir()) == []


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_a_pod_that_would_be_served_is_reported_and_its_container_gets_nothing(
    looking: Looking, own_rpcs: bool
) -> None:
    runtime = looking.connect()
    runtime.own_rpcs = own_rpcs
    pod = looking.pod("one", "[{name: fabric, match: {device: mlx5_3}}]")
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    runtime.start_container(pod, nri.Container(id="c-main", pod_sandbox_id=pod.id, name="main"))
    told = looking.line("pod", "one")
    assert (told["would"], told["was_there"]) == ("attach", False)
    (device,) = told["devices"]
    assert (device["device"], device["mode"]) == ("mlx5_3", "exclusive")
    assert device["netdevs"] == [{"name": "rail3", "pod_name": "rdma0"}]
    container = looking.line("container", "one", "main")
    assert container["would"] == "give"
    assert [node["path"] for node in container["char_devices"]] == [
        "/dev/infiniband/uverbs3",
        "/dev/infiniband/rdma_cm",
    ]
    assert container["env"]["RDMA_NETDEVS_FABRIC"] == "rdma0"


def test_a_pod_that_would_be_refused_runs_and_its_code_is_reported(looking: Looking) -> None:
    runtime = looking.connect()
    pod = looking.pod("bad", "- {cuont: 2}")
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    told = looking.line("pod", "bad")
    assert (told["would"], told["code"]) == ("refuse", "ANNOTATION-UNKNOWN-KEY")
    assert told["error"].startswith("nri-rdma: ANNOTATION-UNKNOWN-KEY: ")
    assert looking.line("container", "bad", "main")["code"] == "ANNOTATION-UNKNOWN-KEY"


def test_what_only_the_plan_refuses_is_refused_too(looking: Looking) -> None:
    pod = looking.pod("name", "- {interface: {name: eth0}}")
    looking.connect().run_pod_sandbox(pod)
    assert looking.line("pod", "name")["code"] == "NAME-CONFLICT"
    assert not looking.allocations.taken()


@pytest.mark.parametrize(
    ("request_text", "would", "code"),
    [("1", "attach", None), ("- {match: {netdev: rail0}}", "refuse", "DEVICE-IN-USE")],
    ids=["another", "no other"],
)
def test_where_the_host_has_come_to_use_a_device_the_pod_would_get_another_one(
    looking: Looking, request_text: str, would: str, code: str | None
) -> None:
    world = looking.inside.world
    rail0 = next(link for link in world.host.links.values() if link.name == "rail0")
    world.sockets.append(HostSocket(protocol="udp", address=None, port=319, ifindex=rail0.ifindex))
    runtime = looking.connect()
    runtime.run_pod_sandbox(looking.pod("one", request_text))
    told = looking.line("pod", "one")
    assert (told["would"], told.get("code")) == (would, code)


def test_a_pod_that_asks_for_nothing_is_reported(looking: Looking) -> None:
    runtime = looking.connect()
    pod = looking.pod("plain", None)
    runtime.run_pod_sandbox(pod)
    assert looking.create(pod) == nri.CreateContainerResponse()
    assert looking.line("pod", "plain")["would"] == "nothing"
    assert looking.line("container", "plain", "main")["would"] == "nothing"


def test_the_second_pod_sees_the_first_ones_devices_taken_until_that_has_stopped(looking: Looking) -> None:
    runtime = looking.connect()
    text = "[{match: {device: mlx5_3}}]"
    first = looking.pod("first", text)
    runtime.run_pod_sandbox(first)
    runtime.run_pod_sandbox(looking.pod("second", text))
    assert looking.line("pod", "second")["code"] == "DEVICE-IN-USE"
    runtime.stop_pod_sandbox(first)
    runtime.remove_pod_sandbox(first)
    runtime.run_pod_sandbox(looking.pod("third", text))
    assert looking.line("ended", "first")
    assert looking.line("pod", "third")["would"] == "attach"


def test_pods_that_are_there_are_reported_with_their_labels_and_containers(looking: Looking) -> None:
    rule = Rule(name="ml", where="FILE:1", pod_labels=(("team", ("ml",)),))
    looking.verdicts.engine.placer.offering.policy = policy_of((), (rule,), allow_default_pool=True)
    pod = looking.pod("old", "1", labels={"team": "ml"})
    looking.runtime.pods = [pod, looking.pod("stranger", "1")]
    looking.runtime.containers = [nri.Container(id="c", pod_sandbox_id=pod.id, name="main", env=["NCCL_IB_HCA=mine"])]
    looking.connect()
    wait_until(lambda: len(looking.lines) == 3, "three verdicts", SOON)
    told = looking.line("pod", "old")
    assert (told["would"], told["was_there"]) == ("attach", True)
    assert "NCCL_IB_HCA" not in looking.line("container", "old", "main")["env"], "the container sets it itself"
    assert looking.line("pod", "stranger")["code"] == "POLICY-DENIED"


def test_a_runtime_that_connects_again_has_its_pods_reported_once_and_those_that_are_gone_as_ended(
    looking: Looking,
) -> None:
    kept = looking.pod("kept", "1")
    looking.runtime.pods = [kept, looking.pod("gone", "1")]
    looking.connect()
    wait_until(lambda: len(looking.lines) == 2, "both verdicts", SOON)
    looking.runtime.pods = [kept]
    looking.connect()
    wait_until(lambda: len(looking.lines) == 3, "the end of one", SOON)
    assert looking.line("pod", "kept")
    assert looking.line("ended", "gone")
    assert len(looking.allocations.taken()) == 1


def test_a_pod_that_comes_while_the_list_is_gone_through_does_not_count_as_gone(looking: Looking) -> None:
    held = threading.Event()
    for _ in range(4):  # all workers: the list has to wait
        looking.inside.workers.submit(f"busy-{_}", lambda: assert_true(held.wait(SOON)))
    runtime = looking.connect()
    runtime.run_pod_sandbox(looking.pod("young", None))
    held.set()
    runtime.run_pod_sandbox(looking.pod("younger", "1"))  # its plan comes after the list
    assert [(it["event"], it["pod"]) for it in looking.lines] == [("pod", "default/young"), ("pod", "default/younger")]


def test_a_pod_of_the_list_that_ends_before_it_is_decided_holds_nothing(looking: Looking) -> None:
    held = threading.Event()
    for _ in range(4):
        looking.inside.workers.submit(f"busy-{_}", lambda: assert_true(held.wait(SOON)))
    pod = looking.pod("short", "1")
    looking.runtime.pods = [pod]
    looking.runtime.containers = [nri.Container(id="c", pod_sandbox_id=pod.id, name="main")]
    runtime = looking.connect()
    runtime.stop_pod_sandbox(pod)
    held.set()
    runtime.run_pod_sandbox(looking.pod("next", "- {count: 8}"))
    assert looking.line("pod", "next")["would"] == "attach"
    assert [it["event"] for it in looking.lines if it["pod"] == "default/short"] == ["ended"]


def test_a_pod_of_the_list_that_ends_while_it_is_decided_holds_nothing(looking: Looking) -> None:
    pod = looking.pod("short", "[{match: {device: mlx5_3}}]")
    (held,) = (device.id for device in looking.inside.node.devices if device.name == "mlx5_3")
    looking.allocations.hold("other", [(held, Holding(owner="default/other", mode=Mode.EXCLUSIVE))])

    reading, ended = threading.Event(), threading.Event()

    def read() -> None:  # the node is read anew before a pod is refused
        reading.set()
        assert ended.wait(SOON)

    looking.runtime.pods = [pod]
    looking.runtime.containers = [nri.Container(id="c", pod_sandbox_id=pod.id, name="main")]
    looking.before_read = read
    runtime = looking.connect()
    assert reading.wait(SOON)
    runtime.stop_pod_sandbox(pod)
    looking.allocations.release("other")
    ended.set()
    looking.inside.workers.submit("reconcile", lambda: None).result(SOON)  # after the list
    assert not looking.allocations.taken()
    assert [it["event"] for it in looking.lines] == ["ended"]


def test_a_container_of_a_listed_pod_waits_for_the_pods_verdict(
    looking: Looking, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = threading.Event()
    for _ in range(4):
        looking.inside.workers.submit(f"busy-{_}", lambda: assert_true(held.wait(SOON)))
    pod = looking.pod("old", "1")
    looking.runtime.pods = [pod]
    looking.connect()
    creating = threading.Thread(target=lambda: looking.create(pod))
    creating.start()
    assert looking.creating.wait(SOON)
    held.set()
    creating.join(SOON)
    assert looking.line("pod", "old")["would"] == "attach"
    assert looking.line("container", "old", "main")["would"] == "give"


def test_a_pod_that_is_told_twice_is_reported_once(looking: Looking) -> None:
    pod = looking.pod("twice", "1")
    looking.runtime.pods = [pod]
    runtime = looking.connect()
    runtime.run_pod_sandbox(pod)
    wait_until(lambda: looking.lines, "the verdict", SOON)
    looking.inside.workers.submit("reconcile", lambda: None).result(SOON)
    assert looking.line("pod", "twice")["was_there"]


def test_what_a_daemon_beside_it_has_attached_is_not_decided_again(looking: Looking) -> None:
    pod = looking.pod("served", "1")
    looking.attached = {pod.id: ("mlx5_0",)}
    looking.runtime.pods = [pod]
    runtime = looking.connect()
    wait_until(lambda: looking.lines, "the verdict", SOON)
    looking.create(pod)
    assert looking.line("pod", "served")["devices"] == [{"device": "mlx5_0"}]
    assert looking.line("container", "served", "main")["would"] == "served"
    runtime.stop_pod_sandbox(pod)
    assert looking.line("ended", "served")


def test_a_bug_is_logged_and_not_told_to_the_runtime(looking: Looking, caplog: pytest.LogCaptureFixture) -> None:
    runtime = looking.connect()
    looking.broken = RuntimeError("planted")
    with caplog.at_level(logging.ERROR):
        runtime.run_pod_sandbox(looking.pod("one", "1"))
    assert "bug in a handler" in caplog.text
    looking.broken = None


def test_a_call_that_is_unknown_is_answered_as_the_daemon_does(looking: Looking) -> None:
    runtime = looking.connect()
    with pytest.raises(RpcError) as refused:
        runtime.call("UpdatePodSandbox", nri.UpdatePodSandboxRequest())
    assert refused.value.code is Code.UNIMPLEMENTED


def test_it_has_another_name_than_the_daemon_and_the_place_before_it() -> None:
    assert dry_identity(Settings(plugin_name="ours", plugin_index="50")).name == "ours-dry-run"
    assert dry_identity(Settings(plugin_name="ours", plugin_index="50")).index == "49"
    assert dry_identity(Settings(plugin_index="00")).index == "00"


def test_the_summary_counts_and_says_that_nothing_was_changed(
    looking: Looking, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = looking.connect()
    for name, text in (("a", "1"), ("b", "- {pool: gold}"), ("c", "- {pool: silver}"), ("d", None)):
        runtime.run_pod_sandbox(looking.pod(name, text))
    capsys.readouterr()
    looking.reporter.finished()
    assert json.loads(capsys.readouterr().out) == {
        "event": "finished",
        "pods": 4,
        "attach": 1,
        "refuse": 2,
        "nothing": 1,
        "served": 0,
        "codes": {"POOL-UNKNOWN": 2},
        "containers": 0,
        "changed": 0,
    }


def test_when_nobody_reads_on_it_ends_and_the_pods_do_not_notice(
    looking: Looking, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    looking.reporter.on_closed = ended.set
    runtime = looking.connect()
    reading, writing = os.pipe()
    os.close(reading)
    with capsys.disabled(), os.fdopen(writing, "w") as closed, redirect_stdout(closed):
        runtime.run_pod_sandbox(looking.pod("one", "1"))
        assert ended.wait(SOON)
        runtime.run_pod_sandbox(looking.pod("two", "1"))
        with pytest.raises(BrokenPipeError):
            looking.reporter.finished()
        os.dup2(os.open(os.devnull, os.O_WRONLY), writing)  # what is buffered goes nowhere


def test_an_output_form_is_for_a_dry_run_only() -> None:
    assert_one_error(nri_rdma("run", "-o", "json"), "SETTING", 2)


def assert_true(value: bool) -> None:
    assert value
