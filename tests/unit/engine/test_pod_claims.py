"""Claims that no container names: the kubelet's checkpoint tells which pods have them, whoever was there to hear."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from nri_rdma.attach.attachments import ATTEMPTS
from nri_rdma.cdi.grants import Origin
from nri_rdma.cdi.index import CLAIM_KEY
from nri_rdma.cdi.registry import Registry
from nri_rdma.doors.dra.claim_specs import cdi_device
from nri_rdma.engine.container import KnownContainer, Listed, ListedContainer
from nri_rdma.engine.pod_claims import PodClaims
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import ErrorCode, KubeletError, NotReadyError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.claim import Claim
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.waits import Waits
from tests.fakes.kernel import World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import PREFIX
from tests.unit.rigs.engine_with_kubelet import (
    DRIVER,
    NIC,
    OTHER_PATH,
    Calls,
    Node,
    container_message,
    names,
    node,
    on_host,
    refusal,
    sandbox_message,
    spec,
    world,
)

__all__ = ["node", "world"]  # fixtures

ALONE, SHARED = "mode: exclusive", "mode: shared"
FIRST = make_pod()
SECOND = replace(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH), name="second")
PLAIN = replace(make_pod("sandbox-3", uid="uid-3", path=OTHER_PATH), name="plain")


def prepare(node: Node, key: str, *pods: Pod) -> None:
    """A claim of our driver is prepared, and these pods have it; the kubelet knows their containers."""
    made = spec(NIC, 0)
    node.specify({**made, "annotations": {PREFIX: key, CLAIM_KEY: "team/rails"}})
    node.kubelet.claim(NIC, pods=pods)
    for pod in pods:
        node.kubelet.give(pod, "trainer")


def listed(pod: Pod, *containers: str) -> Listed:
    return Listed(pod=pod, annotations={}, containers=tuple(ListedContainer(name=it, devices={}) for it in containers))


def concerns(node: Node, pod: Pod) -> bool:
    return node.engine.concerns(KnownContainer(pod=pod, name="trainer"))


def assert_complete(edits: ContainerEdits) -> None:
    assert [it.path for it in edits.char_devices] == [uverbs(0).path, RDMA_CM.path]
    assert "RDMA_DEVICES_CLAIM_1" in names(edits)


def test_a_claim_that_no_container_names_is_the_whole_pods(node: Node) -> None:
    node.specify(spec(NIC, 0))
    pod, other = make_pod(), make_pod("sandbox-2", uid="uid-2")
    node.kubelet.claim(NIC, pods=(pod,))
    told = node.engine.kubelet.claims
    assert [(told.may_have(it.uid), told.of(it.uid)) for it in (pod, other)] == [
        (True, (NIC,)),
        (False, ()),
    ]
    (grant,) = told.grants(pod, (NIC,), PodAllocation())
    assert (grant.for_all, grant.name, grant.origin) == (True, NIC, Origin.KUBELET)
    node.kubelet.give(pod, "main", NIC)
    assert told.grants(pod, (NIC,), node.engine.kubelet.ask(pod).allocation) == ()


def test_a_pod_with_a_claim_waits_for_the_kubelet_to_tell_which_containers_name_it(node: Node) -> None:
    with pytest.raises(NotReadyError, match="has not reported which containers name the pod's claims"):
        node.engine.kubelet.claims.grants(make_pod(), (NIC,), None)
    assert node.engine.kubelet.claims.grants(make_pod(), (), None) == ()


def test_where_the_kubelets_socket_is_not_there_a_pod_with_a_claim_is_told_to_see_doctor(node: Node) -> None:
    """Its checkpoint is there: only `kubelet_socket` is wrong. The kubelet would try again for ever."""
    prepare(node, SHARED, FIRST)
    node.kubelet.is_there = False
    assert refusal(lambda: node.start(FIRST, annotations={})).hint.endswith("if this repeats, see `nri-rdma doctor`")


def test_a_pod_whose_claim_has_no_spec_waits_for_it(node: Node) -> None:
    """Somebody removed it, or it is not read yet: without it the pod would start bare."""
    with pytest.raises(NotReadyError, match=f"no CDI spec has {NIC}, which the pod has by a claim"):
        node.engine.kubelet.claims.grants(make_pod(), (NIC,), PodAllocation())


def test_a_node_without_a_kubelet_has_no_claims(node: Node) -> None:
    node.kubelet.claim(NIC, pods=(make_pod(),))
    node.engine.kubelet.kubelet = None
    assert (node.engine.kubelet.claims.may_have("uid-1"), node.engine.kubelet.claims.of("uid-1")) == (False, ())


def test_while_the_checkpoint_cannot_be_read_no_pod_starts_that_may_have_a_claim(node: Node) -> None:
    told, calls = node.engine.kubelet.claims, Calls(node)
    node.kubelet.is_unreadable = True
    assert (told.may_have(PLAIN.uid), told.of(PLAIN.uid)) == (False, ())  # no claim of ours was ever seen
    node.kubelet.is_unreadable = False
    prepare(node, SHARED, FIRST)
    assert told.may_have(FIRST.uid)
    node.kubelet.is_unreadable = True
    for pod in (FIRST, PLAIN):
        message = sandbox_message(pod)
        assert refusal(partial(calls.run, message)).code is ErrorCode.KUBELET_STATE
    node.engine.synchronize((listed(FIRST), listed(PLAIN))).result(SOON)
    node.kubelet.is_unreadable = False
    assert_complete(node.create("trainer", pod=FIRST))
    assert node.create("trainer", pod=PLAIN) == ContainerEdits()


def test_the_first_claim_counts_as_seen_when_it_is_prepared(node: Node) -> None:
    prepare(node, SHARED, FIRST)
    told = node.engine.kubelet.claims
    told.refuse_untold(Claim(namespace="team", name="rails", uid="c1", label="", requests=()))
    node.kubelet.is_unreadable = True
    assert told.may_have(FIRST.uid)


def test_the_specs_of_an_earlier_daemon_tell_that_there_are_claims(node: Node) -> None:
    node.kubelet.is_unreadable = True
    assert not node.engine.kubelet.claims.may_have(FIRST.uid)
    node.specify(spec(cdi_device("c1", "nic"), 0))
    assert node.engine.kubelet.claims.may_have(FIRST.uid)


def test_before_the_specs_are_read_any_pod_may_have_a_claim_of_an_earlier_daemon(node: Node) -> None:
    node.kubelet.is_unreadable = True
    unread = SpecCache(
        node=lambda: node.node.current, registry=lambda: Registry(devices={}), prefix=PREFIX, is_ready=False
    )
    told = PodClaims(node.kubelet.checkpoint, lambda _pod: None, unread, node.engine.sandboxes)
    assert told.may_have(FIRST.uid)
    unread.set_ready()
    assert not told.may_have(FIRST.uid)


def test_a_pod_is_told_as_unserved_until_each_bare_container_was_made_again(node: Node) -> None:
    prepare(node, SHARED, FIRST)
    node.engine.synchronize((listed(FIRST, "trainer", "sidecar"),)).result(SOON)
    for container, bare in (("trainer", [("sidecar",)]), ("sidecar", [])):
        assert_complete(node.create(container, pod=FIRST))
        assert [it.containers for it in node.engine.unserved] == bare


def test_a_container_of_a_pod_whose_claim_could_not_be_attached_is_refused(node: Node) -> None:
    """Its attachment is forgotten by then, and the container itself shows nothing of the claim."""
    node.engine.barrier.waits = Waits(barrier_s=0.2)
    prepare(node, ALONE, FIRST)
    node.rig.gate.fail_at = "after move-netdev"
    calls = Calls(node)
    calls.run(sandbox_message(FIRST))
    done = node.sandbox().attach_done
    for _ in range(ATTEMPTS - 1):
        node.rig.clock.pass_one()
    assert done.exception(SOON) is not None
    wait_until(lambda: not node.engine.knows(FIRST.sandbox_id), "the end of the attachment")
    refused = refusal(lambda: calls.create(sandbox_message(FIRST), container_message("trainer")))
    assert refused.code is ErrorCode.ATTACH_FAILED


def test_a_claim_that_the_checkpoint_does_not_have_is_not_prepared(node: Node) -> None:
    """A single file that was mounted into the daemon's container stays the old one for ever."""
    claim = Claim(namespace="team", name="rails", uid="c1", label="", requests=())
    with pytest.raises(KubeletError, match="does not have this claim") as caught:
        node.engine.kubelet.claims.refuse_untold(claim)
    assert (caught.value.code, caught.value.where) == (ErrorCode.KUBELET_STATE, "claim team/rails")
    node.kubelet.claim(NIC, pods=(make_pod(),))
    node.engine.kubelet.claims.refuse_untold(claim)


def test_the_second_pod_of_a_shared_claim_has_its_devices(node: Node) -> None:
    prepare(node, SHARED, FIRST)
    node.start(FIRST, annotations={})
    node.kubelet.claim(NIC, pods=(FIRST, SECOND))  # no driver is called for it
    node.kubelet.give(SECOND, "trainer")
    node.start(SECOND, annotations={})
    for pod in (FIRST, SECOND):
        assert_complete(node.create("trainer", pod=pod))
        assert_complete(node.create("sidecar", pod=pod))


def test_the_second_pod_of_a_claim_with_a_device_alone_is_refused_by_the_first_ones_name(node: Node) -> None:
    prepare(node, ALONE, FIRST, SECOND)
    node.start(FIRST, annotations={})
    error = refusal(lambda: node.start(SECOND, annotations={}))
    assert (error.code, "is held by ml/train" in error.what) == (ErrorCode.DEVICE_CONFLICT, True)


def test_a_plain_pod_beside_claims_is_not_asked_about(node: Node) -> None:
    prepare(node, SHARED, FIRST)
    assert (node.engine.may_ask({}, PLAIN.uid), node.engine.may_ask({}, FIRST.uid)) == (False, True)
    node.engine.synchronize((listed(FIRST), listed(PLAIN))).result(SOON)
    assert (concerns(node, PLAIN), node.engine.sandboxes.get(PLAIN.sandbox_id)) == (False, None)


def test_a_pod_that_started_while_nobody_listened_has_its_devices_with_its_first_container(
    node: Node, world: World
) -> None:
    before = world.snapshot()
    prepare(node, ALONE, FIRST)
    assert not concerns(node, FIRST)
    node.engine.synchronize((listed(FIRST),)).result(SOON)
    assert (concerns(node, FIRST), "rail0" in on_host(world)) == (True, True)
    assert_complete(node.create("trainer"))
    assert "rail0" not in on_host(world)
    assert_complete(node.create("sidecar"))
    assert len(node.rig.sandboxes.of(FIRST.sandbox_id)) == 1
    node.stop()
    assert (world.snapshot(), node.holders) == (before, set())


def test_it_waits_until_the_kubelet_has_told_which_containers_name_the_claim(node: Node) -> None:
    prepare(node, ALONE, FIRST)
    node.kubelet.is_late = True
    node.engine.synchronize((listed(FIRST),)).result(SOON)
    error = refusal(lambda: node.create("trainer"))
    assert error.code is ErrorCode.NOT_READY
    assert error.what.startswith("network is not ready: the kubelet has not reported")
    node.kubelet.is_late = False
    assert_complete(node.create("trainer"))


def test_a_container_that_does_not_name_a_claim_which_another_one_names_gets_nothing_of_it(node: Node) -> None:
    prepare(node, ALONE, FIRST)
    node.kubelet.given.clear()
    node.kubelet.give(FIRST, "trainer", NIC)
    node.kubelet.give(FIRST, "sidecar")
    node.engine.synchronize((listed(FIRST),)).result(SOON)
    assert node.create("sidecar") == ContainerEdits()
    assert "RDMA_DEVICES_CLAIM_1" in names(node.create("trainer", 0))
    assert node.create("sidecar") == ContainerEdits()


def test_a_pod_whose_container_runs_without_is_reported(node: Node) -> None:
    prepare(node, ALONE, FIRST)
    node.engine.synchronize((listed(FIRST, "trainer"), listed(PLAIN, "main"))).result(SOON)
    (told,) = node.engine.unserved
    assert (told.pod, told.why) == (FIRST, "container trainer was made while nri-rdma was away")


def test_it_is_reported_also_while_the_kubelet_does_not_answer(node: Node) -> None:
    prepare(node, ALONE, FIRST)
    node.kubelet.is_late = True
    node.engine.synchronize((listed(FIRST, "trainer"),)).result(SOON)
    (told,) = node.engine.unserved
    assert told.why.startswith("it may have claims that were not attached at its start; network is not ready")


def test_of_a_pod_that_has_all_its_claims_the_kubelet_is_not_asked_again(node: Node) -> None:
    prepare(node, ALONE, FIRST)
    node.start(FIRST, annotations={})
    assert_complete(node.create("trainer"))
    asked = node.kubelet.asked
    node.engine.synchronize((listed(FIRST, "trainer"),)).result(SOON)
    assert_complete(node.create("trainer"))
    assert node.kubelet.asked == asked


@pytest.mark.parametrize("is_late", [False, True])
def test_where_the_checkpoint_cannot_be_read_pods_with_claims_are_refused_and_others_start(
    node: Node, is_late: bool
) -> None:
    """`is_late`: when their containers are made, which is the first that this daemon hears of them."""
    prepare(node, ALONE, FIRST)
    node.kubelet.written = json.dumps({"Claims": {FIRST.uid: DRIVER}}).encode()
    if is_late:
        node.engine.synchronize((listed(FIRST), listed(PLAIN))).result(SOON)
        error = refusal(lambda: node.create("trainer"))
    else:
        error = refusal(lambda: node.start(FIRST, annotations={}))
    assert (error.code, "has a form that is not known" in error.what) == (ErrorCode.KUBELET_STATE, True)
    assert not node.engine.may_ask({}, PLAIN.uid)
    assert node.create("trainer", pod=PLAIN) == ContainerEdits()
