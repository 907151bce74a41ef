"""What started while we were away is attached or told of, and what the runtime no longer lists is returned."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.attach.record import Phase
from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.engine.specs import specs_not_read
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.pod import Pod
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.attach.sandbox_life import drop, occupy
from tests.unit.engine.one_rail import OTHER_PATH, daemon, give_up, make_listed, overlapped, refusal, world
from tests.unit.rigs.attachments import SOON, Rig, add_rail
from tests.unit.rigs.engine import ONE, PREFIX, Daemon
from tests.unit.rigs.engine_with_kubelet import Node, node

__all__ = ["daemon", "node", "overlapped", "world"]  # fixtures


def listed(pod: Pod, *containers: str) -> Listed:
    return Listed(
        pod=pod, annotations=ONE, containers=tuple(ListedContainer(name=name, devices={}) for name in containers)
    )


def test_it_is_told_once_by_a_line_a_span_and_the_count(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    pod = make_pod()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):  # a runtime that restarts tells its pods again
            node.engine.synchronizer.reconcile((listed(pod, "main"),), ())
    assert [str(item.pod) for item in node.engine.unserved] == [str(pod)]
    assert node.engine.synchronizer.count == 1
    (span,) = [span for span in node.rig.spans.recent() if span.name == "unserved"]
    assert (span.attributes["k8s.pod.name"], span.attributes["sandbox"]) == (str(pod), pod.sandbox_id)
    assert span.attributes["reason"] == span.error == "its containers were made while nri-rdma was away"
    assert caplog.text.count("pod runs without what it asks for") == 1


def test_another_pod_and_another_reason_are_told_again(node: Node) -> None:
    node.start()
    pod, other = make_pod(), make_pod(sandbox_id="other", uid="other")
    node.engine.synchronizer.reconcile((listed(pod, "first"),), node.rig.sandboxes.all())
    node.engine.synchronizer.reconcile(
        (listed(pod, "first", "second"), listed(other, "main")), node.rig.sandboxes.all()
    )
    reasons = [span.attributes["reason"] for span in node.rig.spans.recent() if span.name == "unserved"]
    assert reasons == [
        "container first was made while nri-rdma was away",
        "container first, second was made while nri-rdma was away",
        "its containers were made while nri-rdma was away",
    ]
    assert node.engine.synchronizer.count == 2


def test_sandboxes_that_the_runtime_does_not_know_are_returned(daemon: Daemon, world: World) -> None:
    before = world.snapshot()
    daemon.start()
    done = daemon.sandbox()
    daemon.engine.synchronize(()).result(SOON)
    assert done.undo_done is not None
    done.undo_done.result(SOON)
    assert (world.snapshot(), daemon.holders) == (before, set())


def test_containers_that_no_runtime_lists_stay(daemon: Daemon) -> None:
    daemon.start(replace(make_pod(), is_listed=False))
    daemon.engine.synchronize(()).result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED
    assert daemon.engine.sandboxes.get("sandbox-1") is not None


def test_sandboxes_that_the_runtime_knows_stay(daemon: Daemon) -> None:
    daemon.start()
    node = daemon.edits().char_devices[0]
    served = ListedContainer(name="main", devices={node.path: (node.major, node.minor)})
    daemon.engine.synchronize((make_listed(make_pod(), containers=(served,)),)).result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED
    assert daemon.engine.unserved == ()


def test_a_sandbox_that_begins_right_after_the_list_was_made_is_not_missing_in_it(daemon: Daemon) -> None:
    release = threading.Event()
    daemon.rig.workers.submit("reconcile", lambda: drop(release.wait(SOON)))  # the worker comes to it late
    later = daemon.engine.synchronize(())
    daemon.start()
    release.set()
    later.result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED


def test_a_pod_that_started_while_the_daemon_was_away_gets_its_devices_before_its_first_container(
    daemon: Daemon,
) -> None:
    hold = threading.Event()
    daemon.rig.workers.submit("reconcile", lambda: drop(hold.wait(SOON)))
    later = daemon.engine.synchronize((make_listed(make_pod(), containers=()),))
    assert refusal(NotReadyError, daemon.edits).what.startswith("network is not ready")
    hold.set()
    later.result(SOON)
    assert daemon.edits().char_devices
    assert daemon.engine.unserved == ()


def test_pods_are_compared_without_specs_that_take_too_long_and_the_log_says_so(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def never(_pod: Pod | None, _deadline: float) -> None:
        raise specs_not_read(None)

    monkeypatch.setattr(daemon.engine.specs, "await_ready", never)
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert [str(item.pod) for item in daemon.engine.unserved] == [str(make_pod())]
    (told,) = (vars(it) for it in caplog.records if it.message == "pods are compared without CDI specs")
    assert "the CDI specs of the node are still being read" in told["error"]


def test_a_bug_in_the_comparison_is_logged_and_keeps_no_container_waiting(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(_pods: object, _known: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(daemon.engine.synchronizer, "reconcile", stumble)
    assert isinstance(
        daemon.engine.synchronize((make_listed(make_pod(), containers=()),)).exception(SOON), RuntimeError
    )
    wait_until(lambda: "the comparison with the runtime's pods failed" in caplog.messages, "the log line", SOON)
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.NOT_ATTACHED


def test_a_comparison_that_the_end_of_the_daemon_cancels_is_no_bug(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.rig.workers.close()
    assert daemon.engine.synchronize((make_listed(make_pod()),)).cancelled()
    assert [it.message for it in caplog.records if it.levelno >= logging.ERROR] == []


def test_a_pod_that_has_containers_without_devices_gets_none_any_more(daemon: Daemon) -> None:
    """They run, and would not see a device that came now."""
    daemon.engine.synchronize((make_listed(make_pod()),)).result(SOON)
    assert (daemon.rig.sandboxes.all(), daemon.holders) == ((), set())
    assert len(daemon.engine.unserved) == 1


@pytest.mark.parametrize("path", ["", "/run/netns/gone"])
def test_a_pod_that_has_ended_gets_nothing_though_the_runtime_still_lists_it(daemon: Daemon, path: str) -> None:
    daemon.engine.synchronize((make_listed(make_pod(path=path), containers=()),)).result(SOON)
    assert (daemon.rig.sandboxes.all(), daemon.holders, daemon.engine.unserved) == ((), set(), ())
    assert refusal(NotReadyError, daemon.edits).code is ErrorCode.NOT_ATTACHED


def test_a_pod_that_started_while_the_daemon_was_away_and_cannot_be_served_is_refused(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.start()
    other = make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    daemon.engine.synchronize((make_listed(make_pod()), make_listed(other, containers=()))).result(SOON)
    assert refusal(NotReadyError, lambda: daemon.edits("sandbox-2")).code is ErrorCode.NOT_ATTACHED
    (told,) = (vars(it) for it in caplog.records if it.message == "the pod gets no devices")
    assert (told["pod"], "DEVICES-EXHAUSTED" in told["error"]) == (str(other), True)


def test_a_pod_that_is_told_as_an_event_and_in_the_list_is_started_once(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at = "after plan"
    later = daemon.engine.synchronize((make_listed(make_pod(), containers=()),))
    assert daemon.rig.gate.reached.wait(SOON)
    daemon.start(seconds=0.05)
    daemon.rig.gate.open.set()
    later.result(SOON)
    assert [it.state for it in daemon.rig.sandboxes.all()] == [Phase.ATTACHED]


def test_a_pod_that_was_decided_about_does_not_wait_for_another_one_that_is_not(daemon: Daemon) -> None:
    first, second = make_pod(), make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH)
    add_rail(daemon.rig.world, "rail1")
    daemon.node.refresh()
    daemon.rig.gate.stop_at = "after plan sandbox-2"
    later = daemon.engine.synchronize(tuple(make_listed(pod, containers=()) for pod in (first, second)))
    assert daemon.rig.gate.reached.wait(SOON)
    known = daemon.engine.sandboxes
    assert (known.is_missed("sandbox-1"), known.is_missed("sandbox-2")) == (False, True)
    assert daemon.edits().char_devices
    daemon.rig.gate.open.set()
    later.result(SOON)
    assert not known.is_missed("sandbox-2")


def test_a_missed_pod_whose_container_was_created_and_has_not_started_gets_its_devices(daemon: Daemon) -> None:
    """The guard refuses that container, and the next one is complete."""
    created = ListedContainer(name="main", devices={}, has_run=False)
    daemon.engine.synchronize((make_listed(make_pod(), containers=(created,)),)).result(SOON)
    assert daemon.sandbox().state is Phase.ATTACHED
    (told,) = daemon.engine.unserved  # without a guard that container runs bare
    assert told.why == "container main was made while nri-rdma was away"
    assert daemon.edits().char_devices
    assert daemon.engine.unserved == ()


@pytest.mark.parametrize(("pid", "is_given"), [(4711, True), (0, False)], ids=["it runs", "it was stopped"])
def test_a_missed_pod_on_the_hosts_network_gets_its_devices_while_it_has_a_process(
    daemon: Daemon, pid: int, is_given: bool
) -> None:
    """The runtime tells the network namespace of neither, and no process of a stopped sandbox."""
    pod = make_pod(path="", pid=pid)
    daemon.engine.synchronize((make_listed(pod, {f"{PREFIX}/pod": "{mode: shared}"}, containers=()),)).result(SOON)
    assert [it.state for it in daemon.rig.sandboxes.all()] == [Phase.ATTACHED] * is_given


def test_a_missed_pod_that_ends_while_it_is_decided_about_holds_nothing(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a namespace that was opened nothing shows that it is gone."""
    is_there = daemon.rig.sandboxes.is_there

    def then_it_ends(pod: Pod) -> bool:
        answer = is_there(pod)
        daemon.engine.stop_pod(pod.sandbox_id, time.monotonic() + SOON)
        return answer

    monkeypatch.setattr(daemon.rig.sandboxes, "is_there", then_it_ends)
    annotations = {f"{PREFIX}/pod": "{mode: shared}"}
    daemon.engine.synchronize((make_listed(make_pod(), annotations, containers=()),)).result(SOON)
    wait_until(lambda: daemon.rig.sandboxes.all() == (), "the end of the attachment")


def test_what_an_earlier_list_left_undecided_is_decided_by_the_next_one(daemon: Daemon) -> None:
    """The runtime has connected anew meanwhile, and the pod has a container by now, which runs without its devices."""
    go_on = occupy(daemon.rig.workers, "reconcile")
    missed = daemon.engine.synchronize((make_listed(make_pod(), containers=()),))
    assert daemon.engine.sandboxes.is_missed("sandbox-1")
    again = daemon.engine.synchronize((make_listed(make_pod()),))
    assert not daemon.engine.sandboxes.is_missed("sandbox-1")
    go_on()
    missed.result(SOON)
    again.result(SOON)
    assert daemon.rig.sandboxes.all() == ()


def test_pods_are_compared_when_it_is_known_what_became_of_an_earlier_daemons_attaches(
    daemon: Daemon, world: World, tmp_path: Path
) -> None:
    daemon.start()
    (node,) = daemon.edits().char_devices
    served = ListedContainer(name="main", devices={node.path: (node.major, node.minor)})
    daemon.rig.kill()
    rig = Rig(state=tmp_path, world=world)
    again = Daemon(rig)
    rig.sandboxes.recover(lambda _record: None, later=True)
    timer = threading.Timer(0.05, rig.sandboxes.take_up)
    timer.start()
    again.engine.synchronize((make_listed(make_pod(), containers=(served,)),)).result(SOON)
    assert again.sandbox().state is Phase.ATTACHED
    assert again.engine.unserved == ()
    timer.join()
    rig.close()


def test_a_report_ends_with_its_pod(daemon: Daemon) -> None:
    daemon.engine.synchronize((make_listed(make_pod("bare")),)).result(SOON)
    assert daemon.engine.remembers("bare")
    daemon.stop("bare")
    assert daemon.engine.unserved == ()


def test_a_pod_that_is_stopped_while_the_list_is_compared_is_not_reported(daemon: Daemon) -> None:
    release = threading.Event()
    daemon.rig.workers.submit("reconcile", lambda: drop(release.wait(SOON)))  # the worker comes to it late
    later = daemon.engine.synchronize((make_listed(make_pod("bare")),))
    daemon.stop("bare")
    release.set()
    later.result(SOON)
    assert (daemon.engine.unserved, daemon.engine.synchronizer.count) == ((), 0)


def test_a_report_ends_with_the_pods_namespace_also_without_an_event(daemon: Daemon) -> None:
    daemon.engine.synchronize((make_listed(make_pod("bare")),)).result(SOON)
    path = make_pod().netns_path
    assert daemon.rig.watched == [path]
    for removed, rows in (("/run/netns/of-another", 1), (path, 0)):
        daemon.engine.sandboxes.namespace_removed(removed)
        assert len(daemon.engine.unserved) == rows


def test_what_is_remembered_of_sandboxes_goes_with_those_that_a_runtime_no_longer_lists(overlapped: Daemon) -> None:
    give_up(overlapped)
    wait_until(lambda: overlapped.engine.unserved, "the failure to be known", SOON)
    overlapped.engine.synchronize(()).result(SOON)
    assert overlapped.engine.unserved == ()
