"""The NRI door against a runtime-side peer on a real socket: from RegisterPlugin to the end."""

import threading
from dataclasses import replace
from typing import cast

import pytest
from google.protobuf.message import Message

from nri_rdma.decide.policy import Rule, policy_of
from nri_rdma.doors.nri import plugin
from nri_rdma.doors.nri.runtime_link import Link
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc import Code, ConnectionClosed, RpcError
from tests.fakes.runtime import FakeRuntime
from tests.rig.deadline import wait_until
from tests.unit.doors.nri.door import ASKS, SOON, Door, GatedPlugin, connected, create, door, make_pod

__all__ = ["door"]


def test_it_registers_and_subscribes_to_what_it_handles_only(door: Door) -> None:
    runtime = connected(door, configure_first=True)
    assert runtime.registration is not None
    assert (runtime.registration.plugin_name, runtime.registration.plugin_idx) == ("nri-rdma", "90")
    assert runtime.events == 0b101111
    wait_until(lambda: door.runner.link is Link.SYNCHRONIZED, "the link to be up")
    runtime.close()


def test_a_request_without_an_answer_is_to_fail_and_the_plugin_to_be_dropped(door: Door) -> None:
    """Kept and hung, it would delay and fail every pod of the node."""
    runtime = connected(door)
    assert runtime.failure_policy == nri.FailurePolicy(fail_request=True, keep_connected=False)
    runtime.close()


def test_the_time_for_a_request_comes_from_the_runtime(door: Door) -> None:
    connected(door, request_timeout_ms=700).close()
    assert door.facts[0].request_timeout_s == 0.7


def test_a_runtime_that_tells_no_time_has_the_usual_one(door: Door) -> None:
    connected(door, request_timeout_ms=0).close()
    assert door.facts[0].request_timeout_s == 2.0


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_rules_know_a_pods_namespace_runtime_handler_and_labels(door: Door, own_rpcs: bool) -> None:
    rule = Rule(
        name="ml",
        where="FILE:1",
        namespaces=("default",),
        runtime_handlers=("nvidia",),
        pod_labels=(("team", ("ml",)),),
    )
    door.inside.engine.offering.policy = policy_of((), (rule,), allow_default_pool=True)
    runtime = connected(door, own_rpcs=own_rpcs)
    with pytest.raises(RpcError, match="POLICY-DENIED: no rule lets a pod of namespace default ask pool default"):
        runtime.run_pod_sandbox(make_pod(door.inside, "stranger"))
    pod = make_pod(door.inside)
    pod.runtime_handler = "nvidia"
    pod.labels["team"] = "ml"
    runtime.run_pod_sandbox(pod)
    assert create(runtime, pod).adjust.linux.devices
    runtime.close()


TWO_LIMITS = {
    "rdma.noderesource.dev": "[{match: {device: mlx5_3}, limits: {hcaHandles: 2}},"
    " {match: {device: mlx5_4}, limits: {hcaObjects: 30}}]"
}
FIRST_LINE, SECOND_LINE = "mlx5_3 hca_handle=2 hca_object=max", "mlx5_4 hca_handle=max hca_object=30"


@pytest.mark.parametrize("own_rpcs", [True, False], ids=["own RPC", "StateChange"])
def test_the_runtime_sets_the_first_limit_and_the_start_waits_for_the_rest(door: Door, own_rpcs: bool) -> None:
    runtime = connected(door, own_rpcs=own_rpcs)
    pod = make_pod(door.inside, annotations=TWO_LIMITS)
    door.inside.make_cgroups("/pod/c", f"/pod/{pod.id}")
    runtime.run_pod_sandbox(pod)
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.cgroups_path = "/pod/c"
    adjust = runtime.create_container(pod, container).adjust
    assert dict(adjust.linux.resources.unified) == {"rdma.max": FIRST_LINE}
    runtime.start_container(pod, container)
    assert door.inside.cgroup_file("/pod/c", "rdma.max").read_text() == f"{FIRST_LINE}\n{SECOND_LINE}\n"
    runtime.close()


@pytest.mark.parametrize("name", ["containerd", "cri-o"])
def test_a_runtime_whose_oci_runtime_does_not_enable_the_controller_is_told_of_no_limit(door: Door, name: str) -> None:
    """crun would refuse the container (docs/adr/0052). The process of the pod has no rdma.max."""
    runtime = connected(door, name=name)
    pod = make_pod(door.inside, annotations=TWO_LIMITS)
    scopes = "a.slice/cri-containerd-{}.scope/container"
    door.inside.make_cgroups(scopes.format("c"))
    pods = door.inside.settings.cgroup_root / scopes.format(pod.id)
    pods.mkdir(parents=True)
    (pods.parent / "cgroup.procs").write_text("")
    (pods / "cgroup.procs").write_text("4711\n")
    runtime.run_pod_sandbox(pod)
    container = nri.Container(id="c", pod_sandbox_id=pod.id, name="main")
    container.linux.cgroups_path = "a.slice:cri-containerd:c"
    adjust = runtime.create_container(pod, container).adjust
    assert dict(adjust.linux.resources.unified) == {}
    assert adjust.linux.devices
    runtime.start_container(pod, container)
    file = door.inside.cgroup_file(scopes.format("c"), "rdma.max")
    assert file.read_text() == f"{FIRST_LINE}\n{SECOND_LINE}\n"
    runtime.close()


def test_a_container_that_cannot_be_limited_is_refused_at_its_start(door: Door) -> None:
    door.inside.make_cgroups()
    runtime = connected(door)
    pod = make_pod(door.inside, annotations=TWO_LIMITS)
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
    runtime = connected(door, name="cri-o")
    pod = make_pod(door.inside, annotations=TWO_LIMITS)
    runtime.run_pod_sandbox(pod)
    unified = create(runtime, pod).adjust.linux.resources.unified
    assert dict(unified) == {"rdma.max": f"{FIRST_LINE}\n{SECOND_LINE}"}
    runtime.close()


def test_the_start_of_a_container_of_others_is_left_alone(door: Door) -> None:
    runtime = connected(door)
    pod = make_pod(door.inside, annotations={})
    runtime.start_container(pod, nri.Container(id="c", pod_sandbox_id=pod.id, name="main"))
    assert [span.name for span in door.inside.spans.recent()] == []
    runtime.close()


def test_a_remove_without_a_stop_gives_everything_back(door: Door) -> None:
    runtime = connected(door)
    pod = make_pod(door.inside)
    before = door.inside.world.snapshot()
    runtime.run_pod_sandbox(pod)
    assert door.inside.world.snapshot() != before
    runtime.remove_pod_sandbox(pod)
    assert door.inside.world.snapshot() == before
    runtime.close()


def test_a_list_of_pods_in_several_messages_is_one_list(door: Door) -> None:
    pods = [make_pod(door.inside, f"p{number}", {}) for number in range(5)]
    attached = door.inside.start_pod("kept", ASKS)
    pods.append(nri.PodSandbox(id=attached.sandbox_id, name="kept", uid=attached.uid, namespace="default"))
    runtime = connected(door, pods=pods, sync_chunk=2)
    wait_until(lambda: door.facts, "the list to be complete")
    assert (len(door.facts), runtime.sync_updates) == (1, [])
    runtime.close()
    assert door.inside.sandboxes.get(attached.sandbox_id) is not None


def test_a_list_of_pods_without_end_ends_the_session(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MAX_LISTED", 4)
    pods = [make_pod(door.inside, f"p{number}", {}) for number in range(5)]
    with pytest.raises(ConnectionClosed):
        connected(door, pods=pods, sync_chunk=2)
    assert door.facts == []


def test_a_list_of_pods_may_be_as_long_as_its_bound(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MAX_LISTED", 4)
    runtime = connected(door, pods=[make_pod(door.inside, f"p{number}", {}) for number in range(4)], sync_chunk=2)
    runtime.close()


def logged(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    """The log lines about an error with these words."""
    return [it.message for it in caplog.records if words in str(vars(it).get("error"))]


def test_a_refusal_is_told_with_its_code_and_the_session_goes_on(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime = connected(door)
    with pytest.raises(RpcError) as refused:
        runtime.run_pod_sandbox(make_pod(door.inside, "bad", {"rdma.noderesource.dev": "gold"}))
    assert "nri-rdma: POOL-UNKNOWN: " in refused.value.message
    assert refused.value.code == Code.FAILED_PRECONDITION
    assert len(logged(caplog, "POOL-UNKNOWN")) == 1
    runtime.run_pod_sandbox(make_pod(door.inside))
    runtime.close()


@pytest.mark.parametrize("allowed", [False, True])
def test_another_pods_name_is_in_the_log_and_where_a_setting_allows_it_in_the_answer(
    door: Door, caplog: pytest.LogCaptureFixture, allowed: bool
) -> None:
    offering = door.inside.engine.offering
    offering.policy = replace(offering.policy, names_holders=allowed)
    runtime, asks = connected(door), {"rdma.noderesource.dev": "{mode: exclusive, match: {device: mlx5_0}}"}
    runtime.run_pod_sandbox(make_pod(door.inside, "first", asks))
    with pytest.raises(RpcError) as refused:
        runtime.run_pod_sandbox(make_pod(door.inside, "second", asks))
    named = "mlx5_0 is held by pod default/first"
    assert (named if allowed else "mlx5_0 is held by another pod, ") in refused.value.message
    assert len(logged(caplog, named)) == 1
    assert named in door.inside.engine.refused.rows()[0].error
    runtime.close()


def test_a_bug_refuses_the_container_and_the_session_goes_on(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    runtime = connected(door)
    pod = make_pod(door.inside, "plain", {})
    GatedPlugin.broken = ZeroDivisionError("a bug")
    with pytest.raises(RpcError, match="nri-rdma: INTERNAL: ZeroDivisionError: a bug"):
        create(runtime, pod)
    (told,) = (it for it in caplog.records if it.message == "bug in a handler")
    assert "ZeroDivisionError: a bug" in str(told.exc_text)
    GatedPlugin.broken = None
    assert not create(runtime, pod).HasField("adjust")
    runtime.close()


def test_what_it_does_not_serve_is_unimplemented(door: Door) -> None:
    runtime = connected(door)
    with pytest.raises(RpcError) as refused:
        runtime.call("UpdatePodSandbox", nri.UpdatePodSandboxRequest())
    assert refused.value.code == Code.UNIMPLEMENTED
    runtime.close()


def test_stopping_answers_the_call_that_is_being_handled(door: Door) -> None:
    """Without an answer the runtime would create the container as if nothing had been asked."""
    runtime = connected(door)
    GatedPlugin.gate.clear()
    pod = make_pod(door.inside)  # asks, and is not attached: the answer is a refusal
    refusals: list[RpcError] = []

    def ask() -> None:
        with pytest.raises(RpcError) as refused:
            create(runtime, pod)
        refusals.append(refused.value)

    calling = threading.Thread(target=ask)
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


class Noise:
    """What is no message of any kind."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return b"\xff\xff\xff\xff"


@pytest.mark.parametrize("method", ["RunPodSandbox", "CreateContainer", "StateChange"])
def test_what_cannot_be_read_is_the_runtimes_fault_and_one_line(
    door: Door, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    runtime = connected(door)
    with pytest.raises(RpcError) as refused:
        runtime.call(method, cast(Message, Noise()))
    assert refused.value.code is Code.INVALID_ARGUMENT
    (line,) = [record for record in caplog.records if record.levelname in {"WARNING", "ERROR"}]
    assert line.getMessage() == "the runtime sent a message that cannot be decoded"
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    assert create(runtime, pod).adjust.linux.devices
    runtime.close()


def test_a_runtime_that_gives_us_years_is_answered(door: Door) -> None:
    runtime = connected(door, request_timeout_ms=1 << 62)
    pod = make_pod(door.inside)
    runtime.run_pod_sandbox(pod)
    assert create(runtime, pod).adjust.linux.devices
    runtime.close()


def test_a_sandbox_whose_id_is_no_name_of_a_file_is_refused_once_and_forgotten(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = connected(door)
    pod = make_pod(door.inside)
    pod.id = "../sandbox"
    with pytest.raises(RpcError, match="STATE-UNREADABLE"):
        runtime.run_pod_sandbox(pod)
    wait_until(lambda: door.inside.sandboxes.all() == (), "the undo")
    assert len(logged(caplog, "STATE-UNREADABLE")) == 1
    assert not door.inside.reservations.taken()
    runtime.close()
