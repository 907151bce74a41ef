"""The NRI door against a runtime-side peer on a real socket: from RegisterPlugin to the end, and the next session."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.nri import runner as runner_module
from nri_rdma.nri.plugin import Plugin, RuntimeFacts
from nri_rdma.nri.runner import Link, Runner
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.policy import Rule, policy_of
from nri_rdma.ttrpc import Code, RpcError
from nri_rdma.wire.ttrpc import Request
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.cli.conftest import daemon, eight
from tests.unit.cli.daemon import InsideDaemon

__all__ = ["daemon", "eight"]

ASKS = {"rdma.noderesource.dev": "[{match: {device: mlx5_3}}]"}
SOON = 5.0


class GatedPlugin(Plugin):
    """Holds every CreateContainer until the test opens the gate; fails with a bug when told to."""

    gate = threading.Event()
    entered = threading.Event()
    broken = False

    def answer(self, request: Request) -> bytes:
        if request.method == "CreateContainer":
            self.entered.set()
            assert self.gate.wait(SOON)
            if self.broken:
                raise ZeroDivisionError("a bug")
        return super().answer(request)


class Door:
    """A runner in a thread of its own, on the inside of a daemon."""

    def __init__(self, inside: InsideDaemon, socket_path: Path) -> None:
        self.inside = inside
        self.socket_path = socket_path
        self.plugins: list[GatedPlugin] = []
        self.facts: list[RuntimeFacts] = []
        self.before_plugin: Callable[[], None] = lambda: None
        GatedPlugin.gate, GatedPlugin.entered, GatedPlugin.broken = threading.Event(), threading.Event(), False
        GatedPlugin.gate.set()
        self.runner = Runner(str(socket_path), self._make, name="nri-rdma", index="90")
        self.thread = threading.Thread(target=self.runner.run)

    def _make(self, _pid: int) -> Plugin:
        self.before_plugin()
        self.plugins.append(GatedPlugin(self.inside.lifecycle, self.inside.spans, self._synchronized))
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


def _connected(door: Door, **options: object) -> FakeRuntime:
    runtime = FakeRuntime(door.socket_path, **options)  # type: ignore[arg-type] # the test's own keywords
    if door.thread.ident is None:
        door.thread.start()
    runtime.accept(SOON)
    return runtime


def _pod(inside: InsideDaemon, name: str = "one", annotations: dict[str, str] | None = None) -> nri.PodSandbox:
    path = f"/run/netns/{name}"
    namespace = inside.world.add_namespace(path)
    inside.world.add_link(namespace, "lo")
    pod = nri.PodSandbox(id=f"sandbox-{name}", name=name, uid=f"uid-{name}", namespace="default")
    pod.annotations.update(ASKS if annotations is None else annotations)
    pod.linux.namespaces.add(type="network", path=path)
    return pod


def _create(runtime: FakeRuntime, pod: nri.PodSandbox) -> nri.CreateContainerResponse:
    return runtime.create_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))


def test_it_registers_and_subscribes_to_what_it_handles_only(door: Door) -> None:
    runtime = _connected(door, configure_first=True)
    assert runtime.registration is not None
    assert (runtime.registration.plugin_name, runtime.registration.plugin_idx) == ("nri-rdma", "90")
    assert runtime.events == 0b101111
    wait_until(lambda: door.runner.link is Link.SYNCHRONIZED, "the link to be up")
    runtime.close()


def test_time_outs_come_from_the_runtime(door: Door) -> None:
    _connected(door, request_timeout_ms=700, registration_timeout_ms=900).close()
    assert (door.facts[0].request_timeout_s, door.facts[0].registration_timeout_s) == (0.7, 0.9)


def test_a_runtime_that_tells_no_time_outs_has_the_usual_ones(door: Door) -> None:
    _connected(door, request_timeout_ms=0, registration_timeout_ms=0).close()
    assert (door.facts[0].request_timeout_s, door.facts[0].registration_timeout_s) == (2.0, 5.0)


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_pod_events_come_to_one_handler_however_they_are_told(door: Door, own_rpcs: bool) -> None:
    runtime = _connected(door, own_rpcs=own_rpcs)
    pod = _pod(door.inside)
    runtime.run_pod_sandbox(pod)
    assert [device.path for device in _create(runtime, pod).adjust.linux.devices][-1].startswith("/dev/infiniband/")
    runtime.stop_pod_sandbox(pod)
    assert door.inside.sandboxes.all() == ()
    runtime.remove_pod_sandbox(pod)
    runtime.close()


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_rules_know_a_pods_namespace_runtime_handler_and_labels(door: Door, own_rpcs: bool) -> None:
    rule = Rule(
        name="ml",
        where="FILE:1",
        namespaces=("default",),
        runtime_handlers=("nvidia",),
        pod_labels=(("team", ("ml",)),),
    )
    door.inside.lifecycle.policy = policy_of((), (rule,), allow_default_pool=True)
    runtime = _connected(door, own_rpcs=own_rpcs)
    with pytest.raises(RpcError, match="POLICY-DENIED: no rule lets a pod of namespace default ask pool default"):
        runtime.run_pod_sandbox(_pod(door.inside, "stranger"))
    pod = _pod(door.inside)
    pod.runtime_handler = "nvidia"
    pod.labels["team"] = "ml"
    runtime.run_pod_sandbox(pod)
    assert _create(runtime, pod).adjust.linux.devices
    runtime.close()


TWO_LIMITS = {
    "rdma.noderesource.dev": "[{match: {device: mlx5_3}, limits: {hcaHandles: 2}},"
    " {match: {device: mlx5_4}, limits: {hcaObjects: 30}}]"
}
FIRST_LINE, SECOND_LINE = "mlx5_3 hca_handle=2 hca_object=max", "mlx5_4 hca_handle=max hca_object=30"


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_the_runtime_sets_the_first_limit_and_the_start_waits_for_the_rest(door: Door, own_rpcs: bool) -> None:
    door.inside.make_cgroups("/pod/c")
    runtime = _connected(door, own_rpcs=own_rpcs)
    pod = _pod(door.inside, annotations=TWO_LIMITS)
    runtime.run_pod_sandbox(pod)
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.cgroups_path = "/pod/c"
    adjust = runtime.create_container(pod, container).adjust
    assert dict(adjust.linux.resources.unified) == {"rdma.max": FIRST_LINE}
    runtime.start_container(pod, container)
    assert door.inside.cgroup_file("/pod/c", "rdma.max").read_text() == f"{FIRST_LINE}\n{SECOND_LINE}\n"
    runtime.close()


def test_a_container_that_cannot_be_limited_is_refused_at_its_start(door: Door) -> None:
    door.inside.make_cgroups()
    runtime = _connected(door)
    pod = _pod(door.inside, annotations=TWO_LIMITS)
    runtime.run_pod_sandbox(pod)
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.cgroups_path = "/../../etc"
    with pytest.raises(RpcError) as refused:
        runtime.start_container(pod, container)
    assert "nri-rdma: LIMITS-NOT-SET: " in refused.value.message
    assert refused.value.code == Code.INTERNAL
    runtime.close()


def test_a_runtime_that_starts_containers_whatever_we_say_is_given_all_limits(door: Door) -> None:
    door.inside.make_cgroups()
    runtime = _connected(door, name="cri-o")
    pod = _pod(door.inside, annotations=TWO_LIMITS)
    runtime.run_pod_sandbox(pod)
    unified = _create(runtime, pod).adjust.linux.resources.unified
    assert dict(unified) == {"rdma.max": f"{FIRST_LINE}\n{SECOND_LINE}"}
    runtime.close()


def test_the_start_of_a_container_of_others_is_left_alone(door: Door) -> None:
    runtime = _connected(door)
    pod = _pod(door.inside, annotations={})
    runtime.start_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))
    assert [span.name for span in door.inside.spans.recent()] == []
    runtime.close()


def test_a_remove_without_a_stop_gives_everything_back(door: Door) -> None:
    runtime = _connected(door)
    pod = _pod(door.inside)
    before = door.inside.world.snapshot()
    runtime.run_pod_sandbox(pod)
    assert door.inside.world.snapshot() != before
    runtime.remove_pod_sandbox(pod)
    assert door.inside.world.snapshot() == before
    runtime.close()


def test_a_list_of_pods_in_several_messages_is_one_list(door: Door) -> None:
    pods = [_pod(door.inside, f"p{number}", {}) for number in range(5)]
    attached = door.inside.start_pod("kept", ASKS)
    pods.append(nri.PodSandbox(id=attached.sandbox_id, name="kept", uid=attached.uid, namespace="default"))
    _connected(door, pods=pods, sync_chunk=2).close()
    wait_until(lambda: door.facts, "the list to be complete")
    assert len(door.facts) == 1
    assert door.inside.sandboxes.get(attached.sandbox_id) is not None


def test_a_refusal_is_told_with_its_code_and_the_session_goes_on(door: Door) -> None:
    runtime = _connected(door)
    with pytest.raises(RpcError) as refused:
        runtime.run_pod_sandbox(_pod(door.inside, "bad", {"rdma.noderesource.dev": "gold"}))
    assert "nri-rdma: POOL-UNKNOWN: " in refused.value.message
    assert refused.value.code == Code.FAILED_PRECONDITION
    runtime.run_pod_sandbox(_pod(door.inside))
    runtime.close()


def test_a_bug_refuses_the_container_and_the_session_goes_on(door: Door) -> None:
    runtime = _connected(door)
    pod = _pod(door.inside, "plain", {})
    GatedPlugin.broken = True
    with pytest.raises(RpcError, match="nri-rdma: INTERNAL: ZeroDivisionError: a bug"):
        _create(runtime, pod)
    GatedPlugin.broken = False
    assert not _create(runtime, pod).HasField("adjust")
    runtime.close()


def test_what_it_does_not_serve_is_unimplemented(door: Door) -> None:
    runtime = _connected(door)
    with pytest.raises(RpcError) as refused:
        runtime.call("UpdatePodSandbox", nri.UpdatePodSandboxRequest())
    assert refused.value.code == Code.UNIMPLEMENTED
    runtime.close()


def test_stopping_answers_the_call_that_is_being_handled(door: Door) -> None:
    """Without an answer the runtime would create the container as if nothing had been asked."""
    runtime = _connected(door)
    GatedPlugin.gate.clear()
    pod = _pod(door.inside)  # asks, and is not attached: the answer is a refusal
    refusals: list[RpcError] = []

    def create() -> None:
        with pytest.raises(RpcError) as refused:
            _create(runtime, pod)
        refusals.append(refused.value)

    calling = threading.Thread(target=create)
    calling.start()
    assert GatedPlugin.entered.wait(SOON)
    door.runner.stop()
    GatedPlugin.gate.set()
    calling.join(SOON)
    assert ["nri-rdma: NOT-ATTACHED: " in refusal.message for refusal in refusals] == [True]
    door.thread.join(SOON)
    assert not door.thread.is_alive()
    runtime.close()


def test_stopping_while_it_connects_ends_it(door: Door) -> None:
    runtime = FakeRuntime(door.socket_path)
    door.before_plugin = door.runner.stop
    door.thread.start()
    door.thread.join(SOON)
    assert not door.thread.is_alive()
    runtime.close()


def test_it_is_back_soon_after_the_runtime_is(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "GOOD_SESSION_S", 0.0)
    for _ in range(8):  # a pause that grew with each would be 12 s by now
        runtime = _connected(door)
        runtime.close()
        door.socket_path.unlink()
        wait_until(lambda: door.runner.link is Link.DISCONNECTED, "the end to be noticed")
    begun = time.monotonic()
    _connected(door).close()
    assert time.monotonic() - begun < 1.0


def test_it_waits_longer_after_each_session_that_is_refused(door: Door) -> None:
    begun = time.monotonic()
    for _ in range(5):
        runtime = FakeRuntime(door.socket_path)
        if door.thread.ident is None:
            door.thread.start()
        runtime._listener.settimeout(SOON)  # accepts and hangs up: no registration
        connection, _ = runtime._listener.accept()
        connection.close()
        runtime.close()
        door.socket_path.unlink()
    assert time.monotonic() - begun > 0.05 + 0.1 + 0.2 + 0.4
