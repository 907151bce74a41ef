"""A CDI device that lists a netdev (`netDevices`) while that netdev is in a pod: who is refused, and who is not."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from nri_rdma.decide.policy import Asker
from nri_rdma.engine.container import KnownContainer, Listed, ListedContainer
from nri_rdma.errors import ErrorCode
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.device import DeviceNumbers
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import make_pod
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import (
    CLAIM_A,
    CLAIM_B,
    NIC,
    OTHER_PATH,
    VENDOR,
    Node,
    cdi_devices,
    names,
    node,
    refusal,
    spec,
    world,
)

__all__ = ["node", "world"]  # fixtures

RAIL0 = [{"hostInterfaceName": "rail0", "name": "net1"}]
OTHER = replace(make_pod("sandbox-2", uid="uid-2", path=OTHER_PATH), name="other")


def nodes_of(number: int) -> dict[str, DeviceNumbers]:
    return {it.path: (it.major, it.minor) for it in (uverbs(number), RDMA_CM)}


def test_a_claim_whose_netdev_is_on_its_way_back_from_another_pod_is_refused_until_it_is_back(node: Node) -> None:
    node.specify(spec(NIC, 0, netDevices=RAIL0))
    node.create("main", 0, cdi=(NIC,))
    node.node.refresh()
    node.rig.gate.stop_at = "before undo move-netdev"
    node.engine.stop_pod("sandbox-1", time.monotonic() + 0.1)
    try:
        told = refusal(lambda: node.create("main", 0, pod=OTHER, cdi=(NIC,), seconds=0.3))
        assert (told.code, "rail0" in told.what) == (ErrorCode.DEVICE_UNKNOWN, True)
    finally:
        node.rig.gate.open.set()
    wait_until(lambda: not node.rig.sandboxes.of("sandbox-1"), "the end of the other pod")
    node.create("main", 0, pod=OTHER, cdi=(NIC,))
    assert cdi_devices(node, "sandbox-2") == [NIC]


@pytest.mark.parametrize("cdi", [(NIC,), ()], ids=["told by the runtime", "shown by its nodes"])
def test_each_container_of_the_pod_that_has_it_starts_also_where_allocations_are_enforced(
    node: Node, cdi: tuple[str, ...]
) -> None:
    node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    node.specify(spec(NIC, 0, netDevices=RAIL0))
    for container in ("main", "sidecar", "main"):
        assert names(node.create(container, 0, cdi=cdi))
        node.node.refresh()


@pytest.mark.parametrize("is_told_at_start", [False, True])
def test_a_left_over_spec_of_the_same_device_refuses_nobody(node: Node, is_told_at_start: bool) -> None:
    node.specify(spec(CLAIM_A, 0, netDevices=RAIL0), spec(CLAIM_B, 0, netDevices=RAIL0))
    if is_told_at_start:
        node.kubelet.give(make_pod(), "main", CLAIM_B)
        node.start(annotations={})
        node.node.refresh()
    for _ in range(2):
        node.create("main", 0, cdi=(CLAIM_B,))
        node.node.refresh()
    assert cdi_devices(node, "sandbox-1") == [CLAIM_B]


def test_a_pod_that_has_the_device_by_annotation_is_complete(node: Node) -> None:
    node.specify(spec(NIC, 0, netDevices=RAIL0))
    node.start(annotations=ONE)
    env = frozenset(names(node.create("main", annotations=ONE)))
    node.node.refresh()
    running = ListedContainer(name="main", devices=nodes_of(0), cgroups_path="/pod/main", env=env)
    node.engine.synchronize((Listed(pod=make_pod(), annotations=ONE, containers=(running,)),)).result(SOON)
    assert node.engine.unserved == ()


def test_its_device_nodes_alone_are_still_refused_where_allocations_are_enforced(node: Node) -> None:
    node.engine.offering.adoption = Adoption(vendors={VENDOR: VendorAdoption(adopt=Adopt.ENFORCE)})
    node.specify(spec(NIC, 0, netDevices=RAIL0))
    node.create("main", 0, cdi=(NIC,))
    node.node.refresh()
    shown = {uverbs(0).path: nodes_of(0)[uverbs(0).path]}
    thief = KnownContainer(pod=OTHER, name="thief", asker=Asker(namespace="ml"), devices=shown)
    told = refusal(lambda: node.engine.create_container(thief, time.monotonic() + 1))
    assert told.code is ErrorCode.NOT_ALLOCATED
