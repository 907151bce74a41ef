"""The state of CDI devices, and who hears that it has changed."""

from __future__ import annotations

import gc
import time
import weakref
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path

import pytest

from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.advertised import slice_name
from nri_rdma.engine.claim_states import CdiState, ClaimStates
from nri_rdma.engine.gate import Created
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.claim import GivenDevice, GivenProof
from nri_rdma.model.device import DeviceId
from nri_rdma.model.request import Mode
from tests.fakes.kernel import Address, World
from tests.rig.deadline import wait_until
from tests.unit.attach.builders import POD_PATH, make_pod
from tests.unit.rigs.attachments import SOON
from tests.unit.rigs.engine import ONE
from tests.unit.rigs.engine_with_kubelet import (
    CLAIM_A,
    MOVE,
    NIC,
    OTHER_PATH,
    SHARED,
    Node,
    daemon_on,
    node,
    spec,
    world,
)

__all__ = ["node", "world"]

NODES = ("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm")


class Heard:
    """What a listener of a node hears."""

    def __init__(self, node: Node) -> None:
        self.news: list[tuple[frozenset[str], str]] = []
        self.states = ClaimStates(node.engine)
        self.states.on_news.append(lambda names, why: self.news.append((names, why)))

    @property
    def failures(self) -> list[str]:
        return [why for _, why in self.news if why]


@pytest.fixture
def heard(node: Node) -> Heard:
    return Heard(node)


def test_an_exclusive_device_is_given_with_its_netdev_as_it_is_in_the_pod(
    node: Node, heard: Heard, world: World
) -> None:
    (rail,) = [link for link in world.host.links.values() if link.name == "rail0"]
    rail.add_address(Address(interface=ip_interface("10.0.0.1/24")))
    node.node.refresh()
    node.specify(spec(NIC, 0, keys="mode: exclusive\ninterface: {name: fab0}\n"))
    node.kubelet.give(make_pod(), "main", NIC)
    node.start(annotations={})
    node.sandbox().attach_done.result(30)
    assert heard.states.now() == {
        NIC: CdiState(
            given=(
                GivenDevice(
                    device=slice_name(DeviceId("mlx5_0")),
                    rdma_device="mlx5_0",
                    nodes=NODES,
                    mode=Mode.EXCLUSIVE,
                    interface="fab0",
                    mac=rail.mac,
                    addresses=("10.0.0.1/24",),
                ),
            )
        )
    }
    wait_until(lambda: heard.news == [(frozenset({NIC}), "")], "the news of it")


def test_the_addresses_and_the_mac_of_the_request_are_those_that_are_said(node: Node, heard: Heard) -> None:
    asked = "{mode: exclusive, interface: {hardwareAddr: '02:00:00:00:00:77', addresses: [192.0.2.7/24, fd00::7/64]}}"
    node.specify(spec(NIC, 0, keys=asked))
    node.create("main", 0)
    (given,) = heard.states.now()[NIC].given
    assert (given.interface, given.mac) == ("rdma0", "02:00:00:00:00:77")
    assert given.addresses == ("192.0.2.7/24", "fd00::7/64")


def test_a_shared_device_has_no_netdev_in_the_pod_and_stays_while_one_pod_has_it(node: Node, heard: Heard) -> None:
    other = make_pod("sandbox-2", path=OTHER_PATH, uid="uid-2")
    node.specify(spec(NIC, 0, keys=SHARED))
    node.create("main", 0)
    node.create("main", 0, pod=other)
    node.stop()
    (given,) = heard.states.now()[NIC].given
    assert (given.mode, given.interface, given.mac, given.addresses) == (Mode.SHARED, "", "", ())
    node.stop("sandbox-2")
    assert heard.states.now() == {}
    wait_until(lambda: heard.news == [(frozenset({NIC}), "")] * 4, "the news of both pods")


def test_a_device_that_does_not_come_home_is_being_returned_with_the_reason(
    node: Node, heard: Heard, world: World
) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.create("main", 0)
    node.rig.on_gone = _fails
    node.engine.stop_pod("sandbox-1", time.monotonic() + 0.2)
    state = heard.states.now()[NIC]
    assert (state.given, state.is_returning) == ((), True)


def _fails(_key: str) -> None:
    raise OSError("the node cannot be read")


def test_an_attach_that_fails_is_heard_with_its_sentence(node: Node, heard: Heard, world: World) -> None:
    there = world.namespace(POD_PATH)
    assert there is not None
    world.add_link(there, "eth0")
    node.specify(spec(NIC, 0, keys="mode: exclusive\ninterface: {name: eth0}\n"))
    with pytest.raises(NriRdmaError):
        node.create("main", 0)
    wait_until(lambda: bool(heard.failures), "the news")
    assert "the pod has an interface eth0 already" in heard.failures[0]
    assert heard.states.now() == {}


def test_a_pod_that_is_refused_before_anything_is_planned_is_heard(node: Node, heard: Heard) -> None:
    node.specify(spec(NIC, 0, keys=MOVE), spec(CLAIM_A, 0, keys=MOVE))
    node.create("main", 0, cdi=(NIC,))
    other = replace(make_pod("sandbox-2", path=OTHER_PATH, uid="uid-2"), name="other")
    node.kubelet.give(other, "main", CLAIM_A)
    with pytest.raises(NriRdmaError):
        node.start(other, annotations={})
    assert [(names, "is held by another pod" in why) for names, why in heard.news if why] == [
        (frozenset({CLAIM_A}), True)
    ]


def test_a_sandbox_that_ends_while_it_is_attached_is_no_failure(node: Node, heard: Heard) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "main", NIC)
    node.rig.gate.stop_at = "before resolve-numbers"
    node.start(annotations={}, seconds=0.2)
    assert node.rig.gate.reached.wait(30)
    node.stop(seconds=0.05)
    node.rig.gate.open.set()
    node.stop()
    assert heard.failures == []


def test_what_an_earlier_daemon_attached_is_given_from_the_start(world: World, tmp_path: Path) -> None:
    made = spec(NIC, 0, keys=MOVE)
    with daemon_on(world, tmp_path, made) as first:
        first.create("main", 0)
    with daemon_on(world, tmp_path, made) as second:
        assert [it.rdma_device for it in ClaimStates(second.engine).now()[NIC].given] == ["mlx5_0"]


def test_nobody_keeps_an_attachment_that_has_ended(node: Node, heard: Heard) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.create("main", 0)
    (part,) = node.rig.sandboxes.of("sandbox-1")
    known = weakref.ref(part)
    del part
    node.stop()
    gc.collect()
    wait_until(lambda: known() is None, "the end of the attachment")
    assert heard.states.now() == {}


def test_a_claim_whose_attach_is_under_way_is_neither_given_nor_returning(node: Node, heard: Heard) -> None:
    node.specify(spec(NIC, 0, keys=MOVE))
    node.kubelet.give(make_pod(), "main", NIC)
    node.rig.gate.stop_at = "before move-netdev"
    node.start(annotations={}, seconds=0.05)
    assert node.rig.gate.reached.wait(SOON)
    assert node.sandbox().now.record is not None
    assert heard.states.now() == {}
    node.rig.gate.open.set()


def test_of_what_a_pod_asked_for_itself_there_are_no_news_for_claims(node: Node, heard: Heard) -> None:
    node.start(annotations=ONE)
    node.stop()
    assert heard.news == []


def test_a_proof_is_news_of_the_claims_devices_and_a_refusal_is_told_with_its_code(node: Node, heard: Heard) -> None:
    node.specify(spec(NIC, 0, keys="mode: shared\nprove: true\n"))
    node.kubelet.give(make_pod(), "main", NIC)
    node.start(annotations={})
    node.sandbox().attach_done.result(30)
    (before,) = heard.states.now()[NIC].given
    heard.news.clear()
    holdings, created = (
        Holdings((node.sandbox(),)),
        Created(where="w", name="main", container_id="c", cgroups_path="/c", pid=1),
    )
    with pytest.raises(NriRdmaError) as refused:
        node.engine.starts.gate.prove(holdings, created, 1.0)  # this engine can prove nothing
    (after,) = heard.states.now()[NIC].given
    assert heard.news == [(frozenset({NIC}), "")]
    assert (before.proof, after.proof) == (None, GivenProof(code="PROOF-UNAVAILABLE", words=str(refused.value)))
