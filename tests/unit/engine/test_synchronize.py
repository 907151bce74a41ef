"""A container that started while we were away without what its pod asked for is told, and its pod gets no other."""

from __future__ import annotations

import logging

import pytest

from nri_rdma.engine.container import Listed, ListedContainer
from nri_rdma.errors import ErrorCode
from nri_rdma.model.pod import Pod
from tests.unit.adopting import MOVE, NIC, Node, node, on_host, refusal, spec, world
from tests.unit.attach.builders import make_pod
from tests.unit.lifecycle_rig import ONE

__all__ = ["node", "world"]


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


def test_who_asks_only_by_a_claim_is_not_called_unguarded_because_the_guard_does_not_see_claims(node: Node) -> None:
    node.specify(spec(NIC, 1, keys=MOVE))
    pod = make_pod()
    node.create("main", 1, pod=pod)
    node.engine.container_created(pod.sandbox_id, "main", "/pod/main")
    node.engine.start_container(pod.sandbox_id, "main", "/pod/main")
    (sandbox,) = node.rig.sandboxes.of(pod.sandbox_id)
    assert (sandbox.unstarted, sandbox.unguarded) == ({}, set())
