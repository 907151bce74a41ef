"""What a plan decides: names and numbers in the pod, and what it refuses."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.attach.plan import Plan, moving_netdevs, plan_attach, plan_rdma_moves, taken_by, with_carried
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.inherited import Takes
from nri_rdma.model.link import LinkState
from nri_rdma.model.network import NeighbourConfig, NetworkConfig, RouteConfig, RoutingRule, VrfConfig
from nri_rdma.model.request import DeviceRequest, InterfaceConfig, Mode
from tests.unit.attach.builders import make_device, make_placed, plan_of
from tests.unit.attach.networks import networks


def _link(ifindex: int, name: str, **more: object) -> LinkState:
    state = LinkState(
        ifindex=ifindex,
        name=name,
        kind="veth",
        parent="",
        permanent_mac="",
        mac=f"02:00:00:00:00:{ifindex:02x}",
        mtu=1500,
        txqlen=1000,
        alias="",
        alt_names=(),
        up=True,
    )
    return replace(state, **more)  # type: ignore[arg-type]  # fields of the dataclass


RAILS = tuple(_link(5 + number, f"rail{number}") for number in range(3))
CAPTURED = {link.ifindex: link for link in RAILS}
DEVICES = tuple(make_device(f"mlx5_{number}", [link]) for number, link in enumerate(RAILS))


ASKED = DeviceRequest(name="0", where="here")
ROUTE = RouteConfig(destination=ip_network("10.9.0.0/16"), gateway=ip_address("10.0.0.1"))
NEIGHBOUR = NeighbourConfig(destination=ip_address("10.0.0.9"), mac="02:aa:00:00:00:02")


@pytest.mark.parametrize(
    ("request_", "left"),
    [
        (ASKED, set()),
        (replace(ASKED, routes=(ROUTE,)), {"routes"}),
        (replace(ASKED, rules=(RoutingRule(priority=5, table=7),)), {"rules"}),
        (replace(ASKED, neighbours=(NEIGHBOUR,)), {"neighbours"}),
        (replace(ASKED, interface=InterfaceConfig(addresses=((ip_interface("10.0.0.2/24"),),))), {"addresses"}),
        (replace(ASKED, interface=InterfaceConfig(vrf=VrfConfig(name="red", table=7))), {"routes", "rules"}),
        (replace(ASKED, interface=InterfaceConfig(inherit=False)), {"addresses", "routes", "rules", "neighbours"}),
    ],
)
def test_what_a_request_says_itself_does_not_come_along(request_: DeviceRequest, left: set[str]) -> None:
    everything = {"addresses", "routes", "rules", "neighbours"}
    assert taken_by(request_) == Takes(**dict.fromkeys(everything - left, True))


def test_a_netdev_that_has_become_another_one_since_the_plan_is_not_moved() -> None:
    (move,) = plan_of(make_placed(DEVICES[:1]), CAPTURED, ()).moves
    assert with_carried(move, CAPTURED).link == RAILS[0]
    for now in ({}, {RAILS[0].ifindex: replace(RAILS[0], mac="02:00:00:00:00:ff")}):
        with pytest.raises(PlacementError, match="netdev rail0 of mlx5_0 is no longer what it was") as caught:
            with_carried(move, now)
        assert caught.value.code is ErrorCode.INVENTORY


def test_a_netdev_that_was_enslaved_since_the_plan_is_not_moved() -> None:
    (move,) = plan_of(make_placed(DEVICES[:1]), CAPTURED, ()).moves
    with pytest.raises(PlacementError, match="rail0 has been enslaved"):
        with_carried(move, {5: replace(RAILS[0], master=9)})


def test_default_names_are_counted_over_the_whole_pod() -> None:
    plan = plan_attach((make_placed(DEVICES[:2]), make_placed(DEVICES[2:])), CAPTURED, ())
    assert [move.pod_name for move in plan.moves] == ["rdma0", "rdma1", "rdma2"]


def test_names_that_the_pod_has_are_left_out_also_alternative_ones() -> None:
    pod = (_link(1, "rdma0"), _link(2, "eth0", alt_names=("rdma1",)))
    plan = plan_of(make_placed(DEVICES[:1]), CAPTURED, pod)
    assert plan.moves[0].pod_name == "rdma2"


def test_a_fixed_name_that_the_pod_has_is_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        plan_of(make_placed(DEVICES[:1], name="eth0"), CAPTURED, (_link(2, "eth0"),))
    assert caught.value.code is ErrorCode.NAME_CONFLICT


def test_two_devices_cannot_have_one_fixed_name() -> None:
    with pytest.raises(PlacementError) as caught:
        plan_of(make_placed(DEVICES[:2], name="fabric"), CAPTURED, ())
    assert caught.value.code is ErrorCode.NAME_CONFLICT


def test_a_number_does_not_take_the_name_that_a_later_request_has() -> None:
    plan = plan_attach((make_placed(DEVICES[:1]), make_placed(DEVICES[1:2], name="rdma0")), CAPTURED, ())
    assert [move.pod_name for move in plan.moves] == ["rdma1", "rdma0"]


def test_numbers_are_the_hosts_where_they_are_free_in_the_pod() -> None:
    plan = plan_of(make_placed(DEVICES), CAPTURED, (_link(6, "eth0"),))
    numbers = [move.pod_ifindex for move in plan.moves]
    assert (numbers[0], numbers[2]) == (5, 7)
    assert numbers[1] not in {5, 6, 7}


def test_addresses_go_to_their_device_and_there_to_the_first_netdev() -> None:
    two_ports = make_device("mlx4_0", RAILS[:2])
    addresses = ((ip_interface("10.0.0.1/24"),), (ip_interface("10.0.0.2/24"),))
    plan = plan_of(make_placed((two_ports, DEVICES[2]), addresses=addresses, mtu=9000), CAPTURED, ())
    assert [move.addresses for move in plan.moves] == [addresses[0], (), addresses[1]]
    assert {move.mtu for move in plan.moves} == {9000}


def test_a_vrf_has_one_number_that_no_netdev_gets() -> None:
    network = networks(3)[2]
    plan = plan_of(make_placed(DEVICES, network=network), CAPTURED, (_link(6, "eth0"),))
    vrfs = {move.config.vrf for move in plan.moves}
    (vrf,) = vrfs
    assert vrf is not None
    assert vrf.ifindex
    assert vrf.ifindex not in {6, *(move.pod_ifindex for move in plan.moves)}


def test_what_a_request_says_of_the_network_is_for_the_first_netdev_of_a_device() -> None:
    network = networks(2)[1]
    two_ports = make_device("mlx4_0", RAILS[:2])
    plan = plan_of(make_placed((two_ports, DEVICES[2]), network=network), CAPTURED, ())
    assert [bool(move.config.routes) for move in plan.moves] == [True, False, True]
    assert plan.moves[1].config == NetworkConfig()


def test_an_mtu_above_the_drivers_most_refuses_the_plan() -> None:
    captured = {5: replace(RAILS[0], max_mtu=1600)}
    with pytest.raises(PlacementError, match="rail0 of mlx5_0 takes an MTU of at most 1600, not 9000"):
        plan_of(make_placed(DEVICES[:1], mtu=9000), captured, ())


def test_shared_devices_do_not_move() -> None:
    shared = make_placed(DEVICES, mode=Mode.SHARED)
    assert plan_of(shared, CAPTURED, ()) == Plan()
    assert moving_netdevs((shared,)) == ()
    assert plan_rdma_moves((shared,), ()) == ()


@pytest.mark.parametrize(
    ("now", "code"),
    [
        (None, ErrorCode.INVENTORY),
        (replace(RAILS[0], mac="02:00:00:00:00:ff"), ErrorCode.INVENTORY),
        (replace(RAILS[0], master=9), ErrorCode.DEVICE_IN_USE),
        (replace(RAILS[0], xdp=True), ErrorCode.DEVICE_IN_USE),
        (replace(RAILS[0], unreturnable=("is used by the multipath route 10.0.0.0/8",)), ErrorCode.DEVICE_IN_USE),
    ],
)
def test_a_netdev_that_changed_since_it_was_chosen_is_refused(now: LinkState | None, code: ErrorCode) -> None:
    with pytest.raises(PlacementError) as caught:
        plan_of(make_placed(DEVICES[:1]), {5: now} if now else {}, ())
    assert caught.value.code is code
