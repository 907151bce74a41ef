"""What the kubelet says of a pod is remembered with its sandbox; what it does not say is a reason, not an error."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from nri_rdma.cdi.grants import Origin
from nri_rdma.engine.kubelet import KubeletWord
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.engine.readings import Rereading
from tests.unit.rigs.engine_with_kubelet import FOREIGN, NIC, SHARED, Kubelet, Node, daemon_on, node, spec, world

__all__ = ["node", "world"]  # fixtures


@pytest.fixture
def kubelet(node: Node) -> Kubelet:
    node.specify(spec(NIC, 0, keys=SHARED))
    return node.kubelet


def test_what_it_allocated_is_remembered_with_the_sandbox(node: Node, kubelet: Kubelet) -> None:
    kubelet.give(make_pod(), "main", NIC)
    word = node.engine.kubelet.ask(make_pod())
    assert word.allocation is not None
    sandbox = node.engine.sandboxes.get("sandbox-1")
    assert sandbox is not None
    assert sandbox.allocation is word.allocation
    assert node.engine.sandboxes.get("sandbox-2") is None
    (grant,) = node.engine.kubelet.grants(word.allocation)
    assert (grant.container, grant.name, grant.origin) == ("main", NIC, Origin.KUBELET)


def test_an_answer_without_any_device_is_not_kept(node: Node, kubelet: Kubelet) -> None:
    kubelet.give(make_pod(), "main")
    assert node.engine.kubelet.ask(make_pod()).allocation is not None
    assert node.engine.sandboxes.get("sandbox-1") is None


def test_a_cdi_device_that_is_none_of_ours_is_no_grant(node: Node, kubelet: Kubelet) -> None:
    kubelet.give(make_pod(), "main", FOREIGN)
    assert node.engine.kubelet.grants(node.engine.kubelet.ask(make_pod()).allocation) == ()


def test_a_pod_that_it_does_not_know_and_a_kubelet_that_is_late_are_reasons(
    node: Node, kubelet: Kubelet, caplog: pytest.LogCaptureFixture
) -> None:
    assert node.engine.kubelet.ask(make_pod()).is_unknown_pod
    kubelet.is_late = True
    word = node.engine.kubelet.ask(make_pod())
    assert (word.allocation, word.is_unknown_pod) == (None, False)
    assert "KUBELET-LATE" in word.problem
    (line,) = (vars(it) for it in caplog.records if it.message == "the kubelet does not report what it allocated")
    assert (line["pod"], "KUBELET-LATE" in line["error"]) == ("ml/train", True)
    told = node.engine.kubelet.gpus_told(word)
    assert told is not None
    assert told.unanswered == word.problem


def test_a_node_without_a_kubelet_says_nothing(node: Node) -> None:
    node.engine.kubelet.kubelet = None
    assert node.engine.kubelet.ask(make_pod()) == KubeletWord()
    assert node.engine.kubelet.gpus_told(KubeletWord()) is None
    assert not node.engine.kubelet.tells
    assert not node.engine.kubelet.asks_about_devices


def test_a_node_without_gpus_has_none_to_tell_of(node: Node, kubelet: Kubelet) -> None:
    kubelet.give(make_pod(), "main", NIC)
    assert node.engine.kubelet.gpus_told(node.engine.kubelet.ask(make_pod())) is None


def test_it_is_asked_about_devices_only_where_a_spec_is_ours(node: Node) -> None:
    assert not node.engine.kubelet.asks_about_devices
    node.specify(spec(NIC, 0, keys=SHARED))
    assert node.engine.kubelet.asks_about_devices


def test_gpus_are_told_when_the_specs_that_the_kubelet_names_have_been_read(world: World, tmp_path: Path) -> None:
    """Drivers write specs moments before."""
    rereading = Rereading()
    with daemon_on(world, tmp_path, make_others=rereading.make_others) as made:
        made.kubelet.give(make_pod(), "main", NIC)
        word = made.engine.kubelet.ask(make_pod())
        timer = threading.Timer(0.02, rereading.end)
        timer.start()
        made.engine.kubelet.gpus_told(word)
        assert [it.done() for it in rereading.asked] == [True]
        timer.join()
        made.specify(spec(NIC, 0, keys=SHARED))
        made.engine.kubelet.gpus_told(word)
        assert len(rereading.asked) == 1
