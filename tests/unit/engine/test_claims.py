"""Claims on a node: what may be allocated, and a claim that waits for a device that is being returned."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nri_rdma.decide.advertised import slice_name
from nri_rdma.decide.claim_admission import AdmittedClaim
from nri_rdma.decide.placement import Holding
from nri_rdma.decide.policy import policy_of
from nri_rdma.engine.claims import Claims
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.pool import DownPorts, Pool, PoolDoor
from nri_rdma.model.request import Mode
from nri_rdma.model.selector import Selector
from tests.fakes.kernel import Link, World
from tests.unit.attach.builders import make_pod
from tests.unit.decide.placing import lost, set_down
from tests.unit.rigs.engine_with_kubelet import CLAIM_A, MOVE, NIC, OTHER_PATH, Node, names, node, on_host, spec, world
from tests.unit.rigs.inside_daemon import InsideDaemon

__all__ = ["node", "world"]  # fixtures

PREFIX = "rdma.noderesource.dev"
RAILS = Pool(name="rails", modes=(Mode.EXCLUSIVE, Mode.SHARED), door=PoolDoor.CLAIMS)
ALONE = {PREFIX: "[{match: {device: mlx5_2}, mode: exclusive}]"}


@pytest.fixture
def claims(daemon: InsideDaemon) -> Claims:
    return Claims(daemon.engine)


def serve_claims(daemon: InsideDaemon, *pools: Pool) -> None:
    daemon.engine.offering.policy = policy_of(pools or (RAILS,), (), allow_default_pool=False)


def claim(daemon: InsideDaemon, *devices: str, mode: str = "exclusive") -> Claim:
    """A claim that was allocated these devices."""
    known = {it.name: slice_name(it.id) for it in daemon.node.devices}
    request = ClaimRequest(
        name="nic",
        devices=tuple(known.get(name, name) for name in devices),
        pool="node-a",
        parameters={"mode": mode},
        from_claim={},
    )
    return Claim(namespace="team", name="rails", uid="u1", label="rails", requests=(request,))


def netdev_of(daemon: InsideDaemon, name: str) -> Link:
    (device,) = (it for it in daemon.node.devices if it.name == name)
    return daemon.world.host.links[device.netdevs[0].ifindex]


def use(daemon: InsideDaemon, name: str) -> None:
    """Have the host use a device: its netdev becomes a port of a bond."""
    link = netdev_of(daemon, name)
    link.master = daemon.world.add_link(daemon.world.host, "bond0").ifindex
    daemon.read_again()


def take_netdev(daemon: InsideDaemon, name: str) -> None:
    """Take its netdev away from the host."""
    del daemon.world.host.links[netdev_of(daemon, name).ifindex]
    daemon.read_again()


def look(claims: Claims, asked: Claim) -> tuple[AdmittedClaim, ...] | str:
    """What a claim is prepared with now, or why it has to wait."""
    admission = claims.admission(asked)
    return admission.look() or f"{admission.where}: {admission.why}. Next: {admission.hint}."


def only(found: tuple[AdmittedClaim, ...] | str) -> AdmittedClaim:
    assert not isinstance(found, str), found
    (told,) = found
    return told


def advertised_names(claims: Claims) -> list[str]:
    return [str(it.attributes[f"{PREFIX}/rdmaDevice"]["string"]) for it in claims.advertise()]


def test_free_devices_are_prepared_at_once_in_the_order_of_the_claim(daemon: InsideDaemon, claims: Claims) -> None:
    serve_claims(daemon)
    told = only(look(claims, claim(daemon, "mlx5_5", "mlx5_1")))
    assert ([it.name for it in told.devices], told.mode) == (["mlx5_5", "mlx5_1"], Mode.EXCLUSIVE)


def test_a_held_device_is_waited_for_until_it_is_returned(daemon: InsideDaemon, claims: Claims) -> None:
    pod = daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    admission, change = claims.admission(claim(daemon, "mlx5_2")), claims.next_change()
    assert admission.look() is None
    assert (admission.why, admission.where) == (
        "mlx5_2 is still held by default/one",
        "claim team/rails, request nic",
    )
    after_readings = [change]
    daemon.engine.node.on_read.append(lambda: after_readings.append(claims.next_change()))
    daemon.stop_pod(pod)
    for told in after_readings:  # the release comes after the last reading, and is told, too
        told.result(8)
    assert [it.devices[0].name for it in admission.look() or ()] == ["mlx5_2"]


def test_what_waits_for_a_change_cannot_cancel_it_for_others(claims: Claims, daemon: InsideDaemon) -> None:
    change = claims.next_change()
    assert not change.cancel()
    daemon.read_again()
    assert change.result(1) is None


def test_a_claim_that_waits_is_judged_again_only_for_other_devices_or_another_policy(
    daemon: InsideDaemon, claims: Claims
) -> None:
    daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    admission = claims.admission(claim(daemon, "mlx5_2"))
    assert admission.look() is None
    serve_claims(daemon, Pool(name="rails", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS))
    with pytest.raises(NriRdmaError, match="MODE"):
        admission.look()


def test_a_device_that_the_node_has_not_is_waited_for_and_named(daemon: InsideDaemon, claims: Claims) -> None:
    serve_claims(daemon)
    assert "this node has no RDMA device pci-gone now" in str(look(claims, claim(daemon, "pci-gone")))


def test_what_may_not_be_had_is_refused_without_waiting(daemon: InsideDaemon, claims: Claims) -> None:
    serve_claims(daemon, Pool(name="rails", modes=(Mode.SHARED,), door=PoolDoor.CLAIMS))
    with pytest.raises(NriRdmaError, match="MODE"):
        look(claims, claim(daemon, "mlx5_2"))


def test_who_looks_on_waits_for_nobody(daemon: InsideDaemon, claims: Claims) -> None:
    daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    asked = claim(daemon, "mlx5_2")
    (request,) = asked.requests
    eyes = replace(asked, requests=(replace(request, is_admin=True),))
    told = only(look(claims, eyes))
    assert (told.mode, [it.name for it in told.devices]) == (Mode.SHARED, ["mlx5_2"])


def test_only_devices_of_pools_of_claims_are_advertised(daemon: InsideDaemon, claims: Claims) -> None:
    assert claims.advertise() == ()
    serve_claims(daemon)
    assert advertised_names(claims) == [it.name for it in daemon.node.devices]


def test_a_device_that_the_host_uses_is_not_advertised(daemon: InsideDaemon, claims: Claims) -> None:
    serve_claims(daemon)
    use(daemon, "mlx5_3")
    assert advertised_names(claims) == [it.name for it in daemon.node.devices if it.name != "mlx5_3"]


def test_a_device_that_a_pod_has_of_another_pool_is_not_advertised(daemon: InsideDaemon, claims: Claims) -> None:
    daemon.start_pod("one", ALONE)
    serve_claims(daemon, replace(RAILS, select=(Selector(device=("mlx5_0",)),)))
    assert advertised_names(claims) == ["mlx5_0"]


@pytest.mark.parametrize(("mode", "is_refused"), [("exclusive", True), ("shared", False)])
def test_a_device_without_its_netdev_is_waited_for_where_it_is_the_pods_alone(
    daemon: InsideDaemon, claims: Claims, mode: str, is_refused: bool
) -> None:
    serve_claims(daemon)
    asked = claim(daemon, "mlx5_3", mode=mode)
    take_netdev(daemon, "mlx5_3")
    if is_refused:
        told = str(look(claims, asked))
        assert "mlx5_3 has no netdev on the host now" in told
        assert "Next: delete the pod, so that its next claim gets another device, or bring the netdev back" in told
    else:
        only(look(claims, asked))


def test_a_device_that_a_pod_has_is_advertised_as_it_was_on_the_host(daemon: InsideDaemon, claims: Claims) -> None:
    serve_claims(daemon)
    before = claims.advertise()
    daemon.engine.offering.policy = policy_of((), (), allow_default_pool=True)
    daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    assert claims.advertise() == before


@pytest.mark.parametrize(
    ("modes", "node_type", "is_advertised"),
    [
        ((Mode.EXCLUSIVE,), "CA", False),
        ((Mode.EXCLUSIVE, Mode.SHARED), "CA", False),
        ((Mode.SHARED, Mode.EXCLUSIVE), "RNIC", False),
        ((Mode.SHARED,), "CA", True),
        ((Mode.EXCLUSIVE, Mode.SHARED), "unspecified", True),  # EFA has no netdev of its own
        ((Mode.EXCLUSIVE,), "unspecified", False),
    ],
)
def test_a_device_without_its_netdev_is_advertised_only_where_claims_can_have_it(
    daemon: InsideDaemon, claims: Claims, modes: tuple[Mode, ...], node_type: str, is_advertised: bool
) -> None:
    serve_claims(daemon, replace(RAILS, modes=modes))
    take_netdev(daemon, "mlx5_3")
    node = daemon.node
    devices = tuple(replace(it, node_type=node_type) if it.name == "mlx5_3" else it for it in node.devices)
    daemon.engine.node.current = replace(node, devices=devices)
    others = [it.name for it in daemon.node.devices if it.name != "mlx5_3"]
    assert sorted(advertised_names(claims)) == sorted([*others, *["mlx5_3"] * is_advertised])
    assert claims.withheld() == (() if is_advertised else ("mlx5_3",))


def test_a_device_that_a_pod_holds_stays_advertised_without_its_netdev(daemon: InsideDaemon, claims: Claims) -> None:
    """Between two attempts of an attach, for instance: it would be away for as long as slices are not written again."""
    daemon.engine.offering.policy = policy_of((), (), allow_default_pool=True)
    daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    (attachment,) = daemon.sandboxes.all()
    attachment.change(record=None)
    daemon.read_again()
    assert next(it for it in daemon.node.devices if it.name == "mlx5_2").lacks_netdev
    assert (len(claims.advertise()), claims.withheld()) == (8, ())


@pytest.mark.parametrize("refuses", [True, False])
def test_a_device_whose_port_is_down_is_last_in_the_slice_or_not_in_it(
    daemon: InsideDaemon, claims: Claims, refuses: bool
) -> None:
    serve_claims(daemon, replace(RAILS, down_ports=DownPorts.REFUSE if refuses else DownPorts.LAST))
    cache = daemon.engine.node
    cache.current = lost(cache.current, 3)
    others = [it.name for it in daemon.node.devices if it.name != "mlx5_3"]
    assert advertised_names(claims) == [*others, *["mlx5_3"] * (not refuses)]
    holding = Holding(owner="ns/has-it", mode=Mode.SHARED)
    daemon.engine.reservations.hold("sandbox", [(cache.current.devices[3].id, holding)])
    assert advertised_names(claims) == [*others, "mlx5_3"]


@pytest.mark.parametrize(("modes", "is_told"), [((Mode.EXCLUSIVE,), True), (RAILS.modes, False)])
def test_a_pool_that_refuses_dead_ports_tells_of_a_device_that_every_one_of_its_claims_raises(
    daemon: InsideDaemon, claims: Claims, modes: tuple[Mode, ...], is_told: bool
) -> None:
    serve_claims(daemon, replace(RAILS, modes=modes, down_ports=DownPorts.REFUSE))
    cache = daemon.engine.node
    cache.current = set_down(cache.current, 3)
    assert ("mlx5_3" in advertised_names(claims)) is is_told


def test_who_looks_on_at_a_device_without_its_netdev_does_not_keep_it_advertised(
    daemon: InsideDaemon, claims: Claims
) -> None:
    serve_claims(daemon)
    take_netdev(daemon, "mlx5_3")
    (device,) = (it for it in daemon.node.devices if it.name == "mlx5_3")
    holding = Holding(owner="monitoring/eyes", mode=Mode.SHARED, looks_on=True)
    daemon.engine.reservations.hold("eyes", [(device.id, holding)])
    assert claims.withheld() == ("mlx5_3",)


def test_a_pod_between_two_attempts_of_its_attach_has_no_device(daemon: InsideDaemon, claims: Claims) -> None:
    daemon.start_pod("one", ALONE)
    serve_claims(daemon)
    (attachment,) = daemon.sandboxes.all()
    attachment.change(record=None)
    assert advertised_names(claims) == [it.name for it in daemon.node.devices]


# Who looks on


LOOKS_ON = "{mode: shared, adminAccess: true}"


def test_who_looks_on_has_the_nodes_and_neither_moves_nor_holds_what_another_pod_has(node: Node, world: World) -> None:
    node.engine.offering.policy = policy_of((RAILS,), (), allow_default_pool=False)
    claims = Claims(node.engine)
    before = claims.advertise()
    node.specify(spec(NIC, 0, own=MOVE), spec(CLAIM_A, 0, own=LOOKS_ON))
    eyes = make_pod("sandbox-2", path=OTHER_PATH, uid="uid-2")
    node.create("main", 0)
    assert "rail0" not in on_host(world)
    node.node.refresh()
    assert [it.netdevs for it in node.node.current.devices if it.name == "mlx5_0"] == [()]
    edits = node.create("eyes", 0, pod=eyes, cdi=(CLAIM_A,))
    assert "NCCL_IB_HCA" in names(edits)
    assert claims.advertise() == before  # although the device had no netdev when its second pod came
    node.stop()
    assert "rail0" in on_host(world)
    node.node.refresh()
    assert claims.advertise() == before


def test_an_owner_comes_while_another_pod_looks_on_with_the_device_open(node: Node, world: World) -> None:
    node.specify(spec(NIC, 0, own=MOVE), spec(CLAIM_A, 0, own=LOOKS_ON))
    eyes = make_pod("sandbox-2", path=OTHER_PATH, uid="uid-2")
    node.create("eyes", 0, pod=eyes, cdi=(CLAIM_A,))
    assert "rail0" in on_host(world)
    node.create("main", 0, cdi=(NIC,))
    assert "rail0" not in on_host(world)
    node.stop("sandbox-2")
    assert "rail0" not in on_host(world)
    node.stop()
    assert "rail0" in on_host(world)
