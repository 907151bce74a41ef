"""When a late attach reads what: nothing that it decides by may be older than what it has waited for."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from nri_rdma.decide.policy import Asker, policy_of
from nri_rdma.engine.container import KnownContainer
from nri_rdma.engine.shares import ShareBook
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.adoption import Adopt, Adoption, VendorAdoption
from nri_rdma.model.device import LinkLayer, Port
from nri_rdma.model.device import Node as Hardware
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import Mode
from nri_rdma.model.waits import Waits
from tests.fakes.kernel import World
from tests.unit.attach.builders import make_pod
from tests.unit.doors.deviceplugin.pools import NIC as RESOURCE
from tests.unit.doors.deviceplugin.pools import pool_of_devices
from tests.unit.engine.readings import Rereading
from tests.unit.model.hardware import RDMA_CM, uverbs
from tests.unit.rigs.attachments import add_rail
from tests.unit.rigs.engine import PREFIX
from tests.unit.rigs.engine_with_kubelet import (
    CLAIM_A,
    CLAIM_B,
    MOVE,
    NIC,
    OTHER_PATH,
    SHARED,
    Node,
    cdi_devices,
    daemon_on,
    node,
    refusal,
    spec,
    world,
)

__all__ = ["node", "world"]  # fixtures

RAIL0 = [{"hostInterfaceName": "rail0", "name": "net1"}]
"""A CDI device with this asks for a netdev; it asks for nothing while the host does not see that netdev."""
BARRIER_S = 2.0


def offer_ids(node: Node) -> None:
    """The node has a pool whose ids stand for devices."""
    pool = pool_of_devices(Mode.SHARED)
    node.engine.kubelet.shares = ShareBook([pool])
    node.engine.offering.policy = policy_of([pool], (), allow_default_pool=False)


def container(pod: Pod, *numbers: int, cdi: tuple[str, ...] = (), share: str) -> KnownContainer:
    """One with the nodes of these devices, with CDI devices and with a share."""
    return KnownContainer(
        pod=pod,
        name="main",
        asker=Asker(namespace=pod.namespace),
        devices={it.path: (it.major, it.minor) for it in (*map(uverbs, numbers), RDMA_CM)},
        cdi_devices=cdi,
        shares=frozenset({(RESOURCE, share)}),
    )


@pytest.mark.parametrize("is_slow", [False, True], ids=["is back soon", "takes long"])
def test_a_claim_whose_netdev_is_with_an_older_sandbox_of_the_pod_is_attached_or_waited_for(
    node: Node, is_slow: bool
) -> None:
    """Its spec asks for nothing as long as the netdev is away: it must not start bare for that."""
    node.specify(spec(NIC, 0, netDevices=RAIL0))
    node.create("main", 0, cdi=(NIC,))
    node.node.refresh()
    if is_slow:
        node.rig.gate.stop_at = "before undo move-netdev"
    newer = make_pod("sandbox-2", path=OTHER_PATH)
    try:
        if is_slow:
            told = refusal(lambda: node.create("main", 0, pod=newer, cdi=(NIC,), seconds=0.2))
            assert told.code is ErrorCode.NOT_READY
        else:
            node.create("main", 0, pod=newer, cdi=(NIC,))
            assert cdi_devices(node, "sandbox-2") == [NIC]
    finally:
        node.rig.gate.open.set()


def test_a_share_that_waits_for_an_older_sandbox_does_not_hide_what_the_claims_ask_for_then(
    node: Node, world: World
) -> None:
    add_rail(world, "rail2")
    offer_ids(node)
    node.specify(spec(CLAIM_A, 0, netDevices=RAIL0), spec(CLAIM_B, 1, keys=SHARED))
    node.create("main", 0, cdi=(CLAIM_A,))
    node.node.refresh()
    both = container(make_pod("sandbox-2", path=OTHER_PATH), 0, 1, cdi=(CLAIM_A, CLAIM_B), share="mlx5_2")
    node.engine.create_container(both, time.monotonic() + 10)
    assert cdi_devices(node, "sandbox-2") == [CLAIM_A, CLAIM_B]


def test_a_container_is_judged_by_its_ports_after_they_were_looked_at(node: Node) -> None:
    states, read = ["DOWN"], node.node._read

    def with_ports() -> Hardware:
        ports = tuple(
            Port(number=number, link_layer=LinkLayer.INFINIBAND, state=state, speed_gbps=400)
            for number, state in ((1, states[-1]), (2, "ACTIVE"))
        )
        found = read()
        devices = (replace(it, netdevs=(), ports=ports) if it.name == "mlx5_0" else it for it in found.devices)
        return replace(found, devices=tuple(devices))

    node.node._read = with_ports
    node.node.refresh()
    node.specify(spec(NIC, 0, keys=SHARED))
    states.append("ACTIVE")
    node.node.is_outdated = lambda: True  # InfiniBand without a netdev: the kernel announces nothing
    assert dict(node.create("main", 0, cdi=(NIC,)).env)["NCCL_IB_HCA"] == "=mlx5_0"


def test_the_nodes_of_a_share_that_was_reported_late_are_allocated(node: Node, world: World) -> None:
    add_rail(world, "rail2")
    offer_ids(node)
    node.engine.offering.adoption = Adoption(others=VendorAdoption(adopt=Adopt.ENFORCE))
    edits = node.engine.create_container(container(make_pod(), 2, share="mlx5_2"), time.monotonic() + 10)
    assert "RDMA_DEVICES_NIC" in dict(edits.env)


def test_all_waits_of_a_container_together_are_no_longer_than_the_barrier(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.engine.barrier.waits = Waits(barrier_s=BARRIER_S)
    node.specify(spec(NIC, 0, keys=MOVE))
    node.rig.gate.stop_at = "before move-netdev"
    threading.Timer(BARRIER_S * 0.8, node.rig.gate.open.set).start()
    monkeypatch.setattr(node.rig.sandboxes, "look_again", lambda *_arguments, **_options: Future[None]())
    begun = time.monotonic()
    refusal(lambda: node.create("main", 0, cdi=(NIC,), seconds=5.0))
    assert time.monotonic() - begun < BARRIER_S * 1.7


def test_without_a_barrier_nothing_is_waited_for(world: World, tmp_path: Path) -> None:
    rereading = Rereading()
    with daemon_on(world, tmp_path, make_others=rereading.make_others) as early:
        early.engine.barrier.waits = Waits(barrier_s=0.0)
        begun = time.monotonic()
        refusal(lambda: early.create("main", 0, cdi=(NIC,), seconds=20.0))
        assert time.monotonic() - begun < 10
        assert early.seen() == [], "it is not known yet what the container has"


def test_the_span_of_annotations_that_cannot_be_read_has_the_error(node: Node) -> None:
    with pytest.raises(NriRdmaError):
        node.start(annotations={f"{PREFIX}/pod": "{bad: 1"})
    (parsed,) = [it for it in node.rig.spans.recent() if it.name == "parse"]
    assert parsed.error
