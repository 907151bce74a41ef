"""The kubelet is asked what a pod has only where the answer matters."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.engine.asking import Asked, gather
from nri_rdma.engine.shares import ShareBook
from nri_rdma.errors import RequestError
from nri_rdma.model.allocation import ContainerAllocation, PodAllocation
from nri_rdma.model.pci import parse_pci_address
from tests.unit.attach.builders import make_pod
from tests.unit.engine.gpu_machine import KEY, Machine, machine
from tests.unit.rigs.engine import ONE, PREFIX, requested
from tests.unit.rigs.engine_with_kubelet import MOVE, NIC, Node, node, spec, world

__all__ = ["machine", "node", "world"]  # fixtures

GUARD = f"{PREFIX}/guard"


def test_one_word_is_for_the_containers_that_the_kubelet_gave_devices(node: Node) -> None:
    node.kubelet.give(make_pod(), "trainer", resources=("nvidia.com/gpu",))
    node.kubelet.give(make_pod(), "sidecar")
    node.start(annotations=ONE)
    assert node.create("trainer", annotations=ONE).char_devices
    assert not node.create("sidecar", annotations=ONE).char_devices
    (span,) = [it for it in node.rig.spans.recent() if it.name == "kubelet"]
    assert span.attributes["rdma.scope"] == "0: the containers to which the kubelet gave devices: trainer"


def test_one_word_is_for_every_container_where_the_kubelet_names_none(node: Node) -> None:
    node.kubelet.give(make_pod(), "trainer")
    node.start(annotations=ONE)
    assert node.create("trainer", annotations=ONE).char_devices
    assert node.create("sidecar", annotations=ONE).char_devices
    (span,) = [it for it in node.rig.spans.recent() if it.name == "kubelet"]
    assert span.attributes["rdma.scope"] == "0: every container"


def test_one_word_does_not_go_by_the_guard_resource_which_a_policy_gives_to_every_container(node: Node) -> None:
    node.engine.kubelet.shares = ShareBook(guard_resource=GUARD)
    node.kubelet.give(make_pod(), "trainer", resources=(GUARD, "nvidia.com/gpu"))
    node.kubelet.give(make_pod(), "sidecar", resources=(GUARD,))
    node.start(annotations=ONE)
    assert node.create("trainer", annotations=ONE).char_devices
    assert not node.create("sidecar", annotations=ONE).char_devices


def test_one_word_is_for_init_containers_too_where_the_kubelet_gave_the_guard_resource_only(node: Node) -> None:
    node.engine.kubelet.shares = ShareBook(guard_resource=GUARD)
    node.kubelet.give(make_pod(), "trainer", resources=(GUARD,))
    node.start(annotations=ONE)
    assert node.create("trainer", annotations=ONE).char_devices
    assert node.create("init", annotations=ONE).char_devices  # the kubelet never reports init containers


def test_the_kubelet_is_not_asked_where_no_spec_concerns_us(node: Node) -> None:
    node.specify(spec("gpu.example.com/gpu=0", env=["GPU=0"]))
    node.start(annotations={})
    assert node.kubelet.asked == 0


def ask(node: Node, text: str) -> Asked:
    """What a pod with this annotation asks for."""
    return gather(make_pod(), requested({f"{PREFIX}/pod": text}), node.engine.kubelet, node.rig.spans)


def test_a_request_that_cannot_be_read_is_refused_and_the_kubelet_is_not_asked(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    with pytest.raises(RequestError):
        ask(node, "[not: {yaml")
    assert node.kubelet.asked == 0


@pytest.mark.parametrize(("align", "asked"), [("numa", 1), ("none", 0)])
def test_the_kubelet_is_asked_for_the_cpus_of_a_pod_near_a_numa_node(node: Node, align: str, asked: int) -> None:
    """This node has no GPU."""
    node.kubelet.given[str(make_pod())] = PodAllocation(containers=(ContainerAllocation(name="trainer", cpus=(3, 4)),))
    told = ask(node, f"[{{align: {align}}}]")
    assert node.kubelet.asked == asked
    if asked:
        assert told.allocation is not None
        (span,) = [it for it in node.rig.spans.recent() if it.name == "kubelet"]
        assert span.attributes["rdma.cpus"] == "3,4"


def test_a_kubelet_that_is_late_with_the_cpus_is_a_problem_of_the_request(node: Node) -> None:
    node.kubelet.is_late = True
    told = ask(node, "[{align: {to: numa, strict: true}}]")
    assert told.gpus is not None
    assert "no answer" in told.gpus.unanswered


def test_a_request_that_says_all_itself_needs_no_kubelet(node: Node) -> None:
    node.kubelet.give(make_pod(), "trainer", resources=("example.com/nic",))
    asked = ask(node, "{count: 2, mode: exclusive}")
    assert (node.kubelet.asked, asked.allocation, asked.gpus) == (0, None, None)
    assert [item.count for item in asked.request.requests] == [2]


def test_a_kubelet_that_is_late_leaves_the_request_as_it_is_written(node: Node) -> None:
    node.kubelet.is_late = True
    asked = ask(node, "1")
    assert (node.kubelet.asked, asked.allocation, asked.gpus) == (1, None, None)  # the node has no GPUs
    assert [item.count for item in asked.request.requests] == [1]


def test_a_pod_that_asks_for_nothing_has_what_the_kubelet_gave_to_it(node: Node) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "trainer", NIC)
    asked = ask(node, "")
    assert asked.request.requests == ()
    assert asked.allocation is not None
    assert asked.allocation.named == {"trainer"}


@pytest.mark.parametrize(("text", "is_told"), [("{count: 1}", True), ("{align: none}", False)])
def test_gpus_are_told_to_requests_that_may_use_them(machine: Machine, text: str, is_told: bool) -> None:
    machine.give("train", "main", 2)
    pod, kubelet = replace(make_pod(), namespace="default"), machine.inside.engine.kubelet
    asked = gather(pod, requested({KEY: text}), kubelet, machine.inside.spans)
    assert (asked.gpus is not None) == is_told
    if asked.gpus is not None:
        assert {name: known.gpus for name, known in asked.gpus.by_container.items()} == {
            "main": (parse_pci_address("0000:61:00.0"),)
        }
