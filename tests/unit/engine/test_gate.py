"""A container whose request says `prove` starts only when RDMA was proven to work in it."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any  # Any: fields of values

import pytest

from nri_rdma.decide.policy import Asker
from nri_rdma.doors.control.daemon_client import ask_status
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.gate import refuse_unasked
from nri_rdma.engine.guard import Guard, Subject
from nri_rdma.errors import ErrorCode, NriRdmaError, ProofError
from nri_rdma.model.pod import Pod
from nri_rdma.model.proof import DeviceTask, ProofEnd, ProofStep
from tests.unit.engine.test_guard import ID, PATH, given, guard_of, subject
from tests.unit.rigs.inside_daemon import MEMLOCK, POD_ADDRESS, InsideDaemon

PREFIX = "rdma.noderesource.dev"
PID = 4711


def asking(**keys: object) -> dict[str, str]:
    """The annotation of a pod that asks for mlx5_2, to be proven in container a."""
    return {PREFIX: json.dumps([{"match": {"device": "mlx5_2"}, "containers": ["a"], "prove": True, **keys}])}


PROVE = asking()


@pytest.fixture
def guard(daemon: InsideDaemon) -> Guard:
    daemon.make_cgroups(PATH)
    return guard_of(daemon)


def created(daemon: InsideDaemon, annotations: Mapping[str, str] = PROVE, container: str = "a") -> tuple[Pod, Subject]:
    """A pod with a container that was created, as its hook sees it."""
    pod = daemon.start_pod("one", annotations)
    edits = given(daemon, pod, container, annotations)
    return pod, replace(subject(pod, edits, container, annotations), pid=PID, memlock=MEMLOCK)


def test_a_container_is_proven_before_it_starts(daemon: InsideDaemon, guard: Guard) -> None:
    pod, one = created(daemon)
    assert guard.verify(one) == ""
    assert guard.is_to_be_proven(one)
    assert daemon.prover.asked == [], "it is complete, and that is asked before the proof is"
    assert guard.prove(one, 3.0) == ""
    ((task, within_s),) = daemon.prover.asked
    assert (task.where, task.pid, task.cgroups_path, task.memlock) == ("default/one, container a", PID, PATH, MEMLOCK)
    assert (task.devices, task.addresses) == ((DeviceTask(device="mlx5_2"),), (POD_ADDRESS,))
    assert within_s == pytest.approx(3.0, abs=1.5)
    daemon.engine.start_container(pod.sandbox_id, "a", PATH, container_id=ID)


def test_it_is_counted_once_and_refused_where_nothing_is_proven(daemon: InsideDaemon, guard: Guard) -> None:
    _, one = created(daemon)
    daemon.prover.fail(ProofStep.REGISTER, "no memory", errno.ENOMEM)
    assert (guard.verify(one), guard.prove(one, 3.0)[:23]) == ("", "nri-rdma: PROOF-MEMLOCK")
    assert (guard.contacts.asked, guard.contacts.refused) == (1, 1)


def test_it_is_proven_once_and_again_when_it_is_made_again(daemon: InsideDaemon, guard: Guard) -> None:
    pod, one = created(daemon)
    assert (guard.prove(one, 3.0), guard.prove(one, 3.0), guard.is_to_be_proven(one)) == ("", "", False)
    assert len(daemon.prover.asked) == 1, "a container with several hooks is proven once"
    daemon.engine.start_container(pod.sandbox_id, "a", PATH, container_id=ID)
    daemon.engine.container_created(pod.sandbox_id, "a", f"{PATH}-again")
    again = replace(one, container_id=f"{ID}-again")
    assert guard.is_to_be_proven(again)
    assert guard.prove(again, 3.0) == ""
    assert len(daemon.prover.asked) == 2


@pytest.mark.parametrize(
    ("annotations", "container"),
    [
        pytest.param(asking(prove=False), "a", id="a request that does not ask"),
        pytest.param(PROVE, "b", id="a container that the request does not cover"),
    ],
)
def test_others_are_not_proven(
    daemon: InsideDaemon, guard: Guard, annotations: Mapping[str, str], container: str
) -> None:
    pod, one = created(daemon, annotations, container)
    assert (guard.verify(one), guard.is_to_be_proven(one), guard.prove(one, 3.0)) == ("", False, "")
    assert daemon.prover.asked == []
    daemon.engine.start_container(pod.sandbox_id, container, PATH, container_id=ID)


def test_a_pool_proves_requests_that_do_not_say_it(daemon: InsideDaemon, guard: Guard) -> None:
    offering = daemon.engine.offering
    (pool,) = offering.policy.pools.values()
    offering.policy = replace(offering.policy, pools={pool.name: replace(pool, prove=True)})
    annotations = {PREFIX: "[{match: {device: mlx5_2}}, {match: {device: mlx5_3}, prove: false}]"}
    _, one = created(daemon, annotations)
    assert guard.prove(one, 3.0) == ""
    ((task, _),) = daemon.prover.asked
    assert [it.device for it in task.devices] == ["mlx5_2"]


PLANTED = [
    (ProofStep.OPEN, errno.ENODEV, "PROOF-DEVICE"),
    (ProofStep.PORT, None, "PROOF-PORT"),
    (ProofStep.GID, None, "PROOF-GID"),
    (ProofStep.REGISTER, errno.ENOMEM, "PROOF-MEMLOCK"),
    (ProofStep.QP, errno.EAGAIN, "PROOF-LIMITS"),
    (ProofStep.TRANSFER, None, "PROOF-TRANSFER"),
]


@pytest.mark.parametrize(("step", "number", "code"), PLANTED)
def test_a_step_that_fails_refuses_with_its_code(
    daemon: InsideDaemon, guard: Guard, step: ProofStep, number: int | None, code: str
) -> None:
    pod, one = created(daemon)
    daemon.prover.fail(step, "as the library says", number)
    line = guard.prove(one, 3.0)
    assert line.startswith(f"nri-rdma: {code}: ")
    assert "mlx5_2" in line
    assert ", default/one, container a. Next: " in line
    (row,) = daemon.engine.refused.rows()
    assert (row.call, row.code, row.container, row.error) == ("createRuntime", code, "a", line)
    with pytest.raises(ProofError) as refused:
        daemon.engine.start_container(pod.sandbox_id, "a", PATH, container_id=ID)
    assert refused.value.code is ErrorCode.PROOF_NO_HOOK, "whoever starts it all the same"


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ProofEnd.LATE, "PROOF-LATE"),
        (ProofEnd.ENDED, "PROOF-ENDED"),
        (ProofEnd.UNAVAILABLE, "PROOF-UNAVAILABLE"),
    ],
)
def test_a_process_without_an_answer_refuses_with_a_code_of_its_own(
    daemon: InsideDaemon, guard: Guard, end: ProofEnd, code: str
) -> None:
    _, one = created(daemon)
    daemon.prover.end = end
    line = guard.prove(one, 3.0)
    assert line.startswith(f"nri-rdma: {code}: ")
    assert ": as planted, default/one, container a. Next: " in line


def test_a_hook_that_does_not_say_the_process_is_told_to_be_installed_again(daemon: InsideDaemon, guard: Guard) -> None:
    _, one = created(daemon)
    line = guard.prove(replace(one, pid=0), 3.0)
    assert line.startswith("nri-rdma: PROOF-UNAVAILABLE: the guard's hook is of an older release")
    assert "nri-rdma install containerd" in line
    assert daemon.prover.asked == []


def test_limits_are_written_before_the_proof_also_those_of_the_start(daemon: InsideDaemon, guard: Guard) -> None:
    two = {PREFIX: "[{count: 2, prove: true, limits: {hcaObjects: 30}}]"}
    daemon.make_cgroups(PATH.replace(ID, "sandbox-one"))  # an OCI runtime that can write them, and has not
    seen: list[str] = []
    _, one = created(daemon, two)
    prove = daemon.prover.prove

    def look(*words: object) -> object:
        seen.append(daemon.cgroup_file(PATH, "rdma.max").read_text())
        return prove(*words)  # type: ignore[arg-type]  # it is passed on as it came

    daemon.prover.prove = look  # type: ignore[assignment,method-assign]  # a listener before it
    assert guard.prove(one, 3.0) == ""
    assert "hca_object=30" in seen[0]


def test_the_entry_that_the_containers_variables_force_is_the_one_that_is_proven(
    daemon: InsideDaemon, guard: Guard
) -> None:
    _, one = created(daemon)
    assert guard.prove(replace(one, indexes={"UCX_IB_GID_INDEX": "2", "NCCL_IB_GID_INDEX": "3"}), 3.0) == ""
    ((task, _),) = daemon.prover.asked
    assert task.devices == (DeviceTask(device="mlx5_2", gid_index=3),)


def test_a_container_that_no_hook_asked_about_does_not_start(daemon: InsideDaemon, guard: Guard) -> None:
    pod, one = created(daemon)
    assert guard.verify(one) == ""
    with pytest.raises(ProofError, match="nothing was proven: the guard's hook did not run") as refused:
        daemon.engine.start_container(pod.sandbox_id, "a", PATH, container_id=ID)
    assert refused.value.code is ErrorCode.PROOF_NO_HOOK
    assert daemon.cgroup_file(PATH, "cgroup.kill").exists(), "CRI-O starts it whatever it is told"


SHARE, CLAIMED, THEIRS = (
    {"pool": "default", "shares": ("hca-1",)},
    {"cdi_device": f"{PREFIX}/claim=one-mlx5_2"},
    {"cdi_device": "nic.example.com/nic=2"},
)
"""Ways to ask of which the pod's annotations tell nothing."""


@pytest.mark.parametrize(
    ("way", "hooks", "asks"),
    [
        pytest.param({}, {}, False, id="none"),
        pytest.param({}, {"has_handlers_guard": True}, True, id="the handler's, of a pod with an annotation"),
        pytest.param({}, {"has_guard_resource": True}, True, id="that of the guard resource"),
        pytest.param({}, {"guards": frozenset({"another"})}, True, id="that of a share beside it"),
        pytest.param(SHARE, {"guards": frozenset({"default"})}, True, id="that of its share"),
        pytest.param(SHARE, {"has_handlers_guard": True}, False, id="the handler's, which sees no shares"),
        pytest.param(CLAIMED, {"guarded_devices": (CLAIMED["cdi_device"],)}, True, id="that of its claim"),
        pytest.param(CLAIMED, {"has_handlers_guard": True}, True, id="the handler's, of a claim"),
        pytest.param(CLAIMED, {}, False, id="none, of a claim that no container names"),
        pytest.param(THEIRS, {"has_handlers_guard": True}, False, id="the handler's, which sees no CDI devices"),
    ],
)
def test_a_container_whose_hooks_would_not_ask_is_refused_when_it_is_created(
    daemon: InsideDaemon, way: dict[str, Any], hooks: dict[str, Any], asks: bool
) -> None:
    """Whoever dies before it is started."""
    pod = daemon.start_pod("one", PROVE)
    (item,) = daemon.sandboxes.of(pod.sandbox_id).attached
    asked = replace(item, admitted=replace(item.admitted, request=replace(item.admitted.request, **way)))
    container = KnownContainer(pod=pod, name="a", annotations={} if way else PROVE, **hooks)
    with nullcontext() if asks else pytest.raises(ProofError, match="this container has none that would ask") as told:
        refuse_unasked(container, (asked,), PREFIX)
    assert told is None or told.value.code is ErrorCode.PROOF_NO_HOOK
    refuse_unasked(replace(container, name="b"), (asked,), PREFIX)


def test_a_container_without_a_hook_is_not_created(daemon: InsideDaemon) -> None:
    """Its pod was taken: with the guard resource it is not known before whether the container has that."""
    pod = daemon.start_pod("one", PROVE)
    with pytest.raises(ProofError, match="this container has none that would ask, default/one, container a"):
        daemon.engine.create_container(KnownContainer(pod=pod, name="a", annotations=PROVE), time.monotonic() + 5)
    (row,) = daemon.engine.refused.rows()
    assert (row.call, row.code, row.container) == ("CreateContainer", "PROOF-NO-HOOK", "a")
    other = KnownContainer(pod=pod, name="b", annotations=PROVE)
    assert daemon.engine.create_container(other, time.monotonic() + 5).char_devices == ()


@pytest.mark.parametrize("known", [False, None])
def test_a_pod_whose_containers_have_no_hook_is_refused_at_its_start(daemon: InsideDaemon, known: bool | None) -> None:
    daemon.guarded["kata"] = known
    with pytest.raises(NriRdmaError, match="prove needs the guard's hook, and it ") as refused:
        daemon.start_pod("one", PROVE, Asker(runtime_handler="kata"))
    assert refused.value.code is ErrorCode.PROOF_NO_HOOK
    assert "runtime handler kata" in str(refused.value)
    assert "nri-rdma install containerd" in str(refused.value)
    daemon.start_pod("two", asking(prove=False), Asker(runtime_handler="kata"))
    daemon.start_pod("three", {PREFIX: "[{match: {device: mlx5_3}, prove: true}]"}, Asker(runtime_handler="runc"))


def test_a_proof_has_a_span_with_what_was_proven(daemon: InsideDaemon, guard: Guard) -> None:
    _, one = created(daemon)
    assert guard.prove(one, 3.0) == ""
    (span,) = [it for it in daemon.spans.recent() if it.name == "prove"]
    told = {key: value for key, value in span.attributes.items() if key.startswith("rdma.")}
    assert told == {
        "rdma.devices": "mlx5_2",
        "rdma.proof": "mlx5_2:1 roce by GID 1",
        "rdma.proof.ms": 12.5,
    }
    assert span.error == ""


def test_status_has_the_containers_that_were_proven(daemon: InsideDaemon, guard: Guard) -> None:
    _, one = created(daemon)
    daemon.prover.end = ProofEnd.LATE
    line = guard.prove(one, 3.0)
    (sandbox,) = ask_status(daemon.settings.control_path)["sandboxes"]
    (told,) = sandbox["proofs"]
    assert (told["container"], told["code"], told["why"], told["ports"]) == ("a", "PROOF-LATE", line, [])
    daemon.prover.end = ProofEnd.ANSWERED
    assert guard.prove(one, 3.0) == ""
    (sandbox,) = ask_status(daemon.settings.control_path)["sandboxes"]
    (told,) = sandbox["proofs"]
    assert (told["code"], told["why"], told["ports"]) == ("", "", ["mlx5_2:1 roce by GID 1"])
    assert (told["took_ms"], abs(told["at"] - time.time()) < 60) == (12.5, True)


def test_a_container_that_cannot_be_limited_is_not_proven(daemon: InsideDaemon) -> None:
    guard, limited = guard_of(daemon), asking(limits={"hcaObjects": 30})
    daemon.make_cgroups(PATH, PATH.replace(ID, "sandbox-one"))
    two = {PREFIX: limited[PREFIX][:-1] + ", {match: {device: mlx5_3}, prove: true, limits: {hcaObjects: 30}}]"}
    _, one = created(daemon, two)
    daemon.cgroup_file(PATH, "rdma.max").unlink()
    daemon.cgroup_file(PATH, "rdma.max").mkdir()
    assert guard.prove(one, 3.0).startswith("nri-rdma: LIMITS-NOT-SET: ")
    assert daemon.prover.asked == []
