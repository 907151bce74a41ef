"""What is reported of pods that are there, that come and that end."""

import threading

import pytest

from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import Rule, policy_of
from nri_rdma.model.request import Mode
from nri_rdma.pb import nri_pb2 as nri
from tests.rig.deadline import wait_until
from tests.unit.commands.dryrun.looking import SOON, Looking, assert_true


def test_pods_that_are_there_are_reported_with_their_labels_and_containers(looking: Looking) -> None:
    rule = Rule(name="ml", where="FILE:1", pod_labels=(("team", ("ml",)),))
    looking.verdicts.engine.offering.policy = policy_of((), (rule,), allow_default_pool=True)
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
    wait_until(lambda: len(looking.reservations.taken()) == 1, "the device of that one to be free", SOON)


def test_a_pod_that_comes_while_the_list_is_gone_through_does_not_count_as_gone(looking: Looking) -> None:
    held = threading.Event()
    for _ in range(4):  # all workers: the list has to wait
        looking.inside.workers.submit(f"busy-{_}", lambda: assert_true(held.wait(SOON)))
    runtime = looking.connect()
    runtime.run_pod_sandbox(looking.pod("young", None))
    held.set()
    runtime.run_pod_sandbox(looking.pod("younger", "1"))  # its plan comes after the list
    assert looking.line("pod", "younger")
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
    looking.reservations.hold("other", [(held, Holding(owner="default/other", mode=Mode.EXCLUSIVE))])

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
    looking.reservations.release("other")
    ended.set()
    looking.inside.workers.submit("reconcile", lambda: None).result(SOON)  # after the list
    assert not looking.reservations.taken()
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
