"""CreateContainer: a container whose pod asks gets all of it, or an error and nothing is attached for it."""

from __future__ import annotations

import time

import pytest

from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.engine.one_rail import daemon
from tests.unit.engine.one_rail import refusal as refusal_of
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE, PREFIX, Daemon
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, node, on_host, refusal, spec, world

__all__ = ["daemon", "node", "world"]  # fixtures


@pytest.mark.parametrize("annotations", [ONE, {f"{PREFIX}/pod": "[not: {yaml"}], ids=["asks", "unreadable"])
def test_a_container_of_an_unknown_sandbox_that_asks_is_refused(daemon: Daemon, annotations: dict[str, str]) -> None:
    assert refusal_of(NotReadyError, lambda: daemon.edits(annotations=annotations)).code is ErrorCode.NOT_ATTACHED


def test_a_container_gets_nothing_of_a_sandbox_that_ends_while_something_else_of_it_is_waited_for(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.start()

    def await_concerned(*_arguments: object) -> bool:
        daemon.stop()
        return False

    monkeypatch.setattr(EvidenceCollector, "await_concerned", await_concerned)
    work = daemon.edits
    assert refusal_of(NotReadyError, work).code is ErrorCode.RETURNING


def test_its_pod_gets_no_container_and_nothing_that_one_brings_is_attached(node: Node) -> None:
    node.specify(spec(NIC, 1, keys=MOVE))
    pod = make_pod()
    before = on_host(node.rig.world)
    assert refusal(lambda: node.create("main", 1, pod=pod, annotations=ONE)).code is ErrorCode.NOT_ATTACHED
    assert node.rig.sandboxes.of(pod.sandbox_id) == ()
    assert on_host(node.rig.world) == before


def test_what_one_container_brought_does_not_serve_the_pods_own_request(node: Node) -> None:
    node.specify(spec(NIC, 1, keys=MOVE))
    pod = make_pod()
    node.create("early", 1, pod=pod)  # before anybody wrote the annotation
    assert [sandbox.part for sandbox in node.rig.sandboxes.of(pod.sandbox_id)] == ["early"]
    assert refusal(lambda: node.create("late", pod=pod, annotations=ONE)).code is ErrorCode.NOT_ATTACHED


def test_a_container_without_a_name_does_not_stand_for_what_its_pods_annotation_asks(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    assert refusal(lambda: node.create("", 0, annotations=ONE)).code is ErrorCode.NOT_ATTACHED


def test_a_container_is_answered_from_memory(daemon: Daemon) -> None:
    daemon.start()
    reads, daemon.broken = daemon.reads, OSError("sysfs is gone")
    first = daemon.edits()
    assert [(it.path, it.major, it.minor) for it in first.char_devices] == [("/dev/infiniband/uverbs0", 231, 192)]
    assert dict(first.env)["NCCL_IB_HCA"] == "=mlx5_0"
    assert daemon.edits() == first
    assert daemon.reads == reads


def test_a_node_of_another_device_at_our_path_is_refused_and_a_stale_one_is_replaced(
    daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    daemon.start()
    ours = "/dev/infiniband/uverbs0"
    theirs, stale = (
        KnownContainer(pod=make_pod(), name="main", annotations=ONE, devices={ours: numbers})
        for numbers in ((231, 193), (510, 3))
    )
    by = time.monotonic() + SOON
    error = refusal_of(NriRdmaError, lambda: daemon.engine.create_container(theirs, by))
    assert (error.code, "mlx5_1" in str(error)) == (ErrorCode.PATH_CONFLICT, True)
    assert "replaced" not in caplog.text
    assert [it.path for it in daemon.engine.create_container(stale, by).char_devices] == [ours]
    (record,) = [it for it in caplog.records if "replaced" in it.message]
    assert (record.__dict__["theirs"], record.__dict__["ours"]) == ("510:3", "231:192")


def test_a_container_of_a_pod_whose_attach_failed_after_its_start_is_told_why(daemon: Daemon) -> None:
    daemon.rig.gate.stop_at, daemon.rig.gate.fail_at = "before move-netdev", "after move-netdev"
    daemon.start(seconds=0.01)
    done = daemon.sandbox().attach_done
    daemon.rig.gate.open.set()
    assert done.exception(SOON) is not None
    wait_until(lambda: daemon.engine.unserved, "the failure to be known", SOON)
    error = refusal_of(NotReadyError, daemon.edits)
    assert (error.code, "injected after move-netdev" in error.detail) == (ErrorCode.ATTACH_FAILED, True)


def test_the_trace_has_the_limits_that_a_container_gets(daemon: Daemon) -> None:
    annotations = {f"{PREFIX}/pod": "{limits: {hcaHandles: 3, hcaObjects: 40}}"}
    daemon.start(annotations=annotations)
    lines = daemon.edits(annotations=annotations).rdma_max
    (span,) = (span for span in daemon.rig.spans.recent() if span.name == "inject")
    assert span.attributes["rdma.limits"] == "; ".join(lines) == "mlx5_0 hca_handle=3 hca_object=40"
