"""What each operation on a link declares holds: who knows it, and what takes it away again."""

import inspect
from dataclasses import fields, is_dataclass, replace
from ipaddress import IPv4Address, IPv4Network, ip_interface

import pytest

from nri_rdma.attach import ops as ops_module
from nri_rdma.attach.ops import (
    OP_TYPES,
    AddAddress,
    AddAltName,
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    DetachXdp,
    DropAltName,
    DropVrf,
    GoneWith,
    Inherit,
    JoinVrf,
    Op,
    Remove,
    RemoveRejectRoute,
    RemoveRule,
    RenameRdma,
    Restore,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
    SetTuning,
    inverses_of,
)
from nri_rdma.attach.plan import NetdevMove, ops_of
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.host.netlink.codec import CODECS
from nri_rdma.model.inherited import Brought
from nri_rdma.model.link import STABLE_SECRET, LinkState
from nri_rdma.model.network import SCOPE_LINK, NeighbourConfig, RouteConfig, RouteType, RoutingRule, VrfConfig
from nri_rdma.model.nldev import RdmaDeviceState
from nri_rdma.observe.spans import Recorder
from tests.fakes.kernel import CHANGES, FakeKernel, World
from tests.rig.linkops import apply, capture
from tests.unit.attach.builders import POD_PATH, Interfaces, make_device, make_placed, record_of
from tests.unit.attach.rails import GUID, rail, rail_world

SPANS = Recorder(capacity=1)
ROUTE = RouteConfig(destination=IPv4Network("10.9.0.0/16"), scope=SCOPE_LINK)
REJECT = RouteConfig(destination=IPv4Network("10.8.0.0/16"), type=RouteType.BLACKHOLE)
RULE = RoutingRule(priority=100, table=100, version=4, source=IPv4Network("10.0.0.0/8"))
VRF = VrfConfig(name="red", table=100)
NEIGHBOUR = NeighbourConfig(destination=IPv4Address("10.0.0.9"), mac="02:aa:00:00:00:02")
EVERY = sorted(OP_TYPES, key=lambda it: it.__name__)


def test_every_operation_has_a_row_in_both_tables() -> None:
    declared = {
        it for _, it in inspect.getmembers(ops_module, inspect.isclass) if is_dataclass(it) and "describe" in vars(it)
    }
    declared = {it for it in declared if it.__module__ == ops_module.__name__}
    assert set(CODECS) == set(CHANGES) == OP_TYPES == declared


@pytest.mark.parametrize("kind", EVERY)
def test_what_takes_a_change_away_is_declared_and_exists(kind: type[Op]) -> None:
    if kind.gone_with is GoneWith.INVERSE:
        assert callable(getattr(kind, "inverse", None))
    if kind.gone_with is GoneWith.RESTORE:
        captured = RdmaDeviceState if kind is RenameRdma else LinkState
        assert kind.fields <= {field.name for field in fields(captured)}
        assert kind.fields
        world = rail_world()
        before = world.snapshot()
        for name in kind.fields:
            changed = rail_world()
            _change(changed, kind, name)
            assert changed.snapshot() != before, name


def _change(world: World, kind: type[Op], field: str) -> None:
    """Another value of a field of the host's link, or of the RDMA device."""
    item = world.rdma[0] if kind is RenameRdma else rail(world)
    value = getattr(item, field)
    match value:
        case bool():
            value = not value
        case int():
            value += 1
        case str():
            value += "x"
        case list():
            value = [*value, "other"]
        case dict():
            value |= {"group": 77}
    setattr(item, field, value)


@pytest.mark.parametrize("kind", [it for it in EVERY if it.gone_with is GoneWith.MOVE])
def test_the_move_to_the_host_takes_the_change_away(kind: type[Op]) -> None:
    world = rail_world()
    kernel = FakeKernel(world)
    pod = kernel.open_namespace(POD_PATH)
    ifindex = rail(world).ifindex
    kernel.move_link(kernel.host, ifindex, pod, "rdma0", as_ifindex=ifindex)
    kernel.move_link(pod, ifindex, kernel.host, "rail0", as_ifindex=ifindex)
    moved = {name: getattr(capture(kernel, kernel.host, ifindex), name) for name in kind.fields}
    kernel.move_link(kernel.host, ifindex, pod, "rdma0", as_ifindex=ifindex)
    apply(kernel, pod, ifindex, SetLink(up=True))
    for op in _samples(kind):
        apply(kernel, pod, ifindex, op)
    kernel.move_link(pod, ifindex, kernel.host, "rail0", as_ifindex=ifindex)
    assert {name: getattr(capture(kernel, kernel.host, ifindex), name) for name in kind.fields} == moved


@pytest.mark.parametrize("kind", [it for it in EVERY if it.gone_with is not GoneWith.INVERSE])
def test_an_undo_takes_away_what_the_operation_did_in_the_pod(kind: type[Op]) -> None:
    world = rail_world()
    before, kernel = world.snapshot(), FakeKernel(world)
    pod = kernel.open_namespace(POD_PATH)
    rail = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [rail]), node_guid=GUID)
    record = record_of(kernel, pod, make_placed((device,), inherit=False))
    steps = steps_of(record.plan)
    do_steps(kernel, pod, steps, SPANS)
    samples = _samples(kind)
    apply(kernel, pod, record.plan.moves[0].pod_ifindex if kind is not RenameRdma else 1, *samples)
    assert {type(op) for op in samples} == {kind}
    assert undo_steps(kernel, pod, steps, SPANS) == ()
    assert world.snapshot() == before


def test_nothing_that_configures_a_netdev_needs_an_undo_of_its_own() -> None:
    addresses = (ip_interface("10.9.0.1/24"), ip_interface("fd09::1/64"))
    ops = ops_of(_move(mtu=1400, addresses=addresses))
    assert ops == (SetLink(mtu=1400), *(AddAddress(address=it) for it in addresses), SetLink(up=True))
    assert all(op.gone_with is not GoneWith.INVERSE for op in ops)
    assert ops_of(_move(mtu=None, addresses=())) == (SetLink(up=True),)


def test_no_description_tells_a_secret() -> None:
    op = SetSysctl(key=STABLE_SECRET, value="fd00::1")
    assert op.describe() == f"set {STABLE_SECRET}"
    assert "fd00::1" not in repr(op)


@pytest.mark.parametrize(
    ("op", "words"),
    [
        (
            SetLink(mac="02:00:00:00:00:01", name="a", mtu=1, txqlen=0, alias=""),
            "address 02:00:00:00:00:01, name a, mtu 1, txqlen 0, alias ",
        ),
        (SetLink(up=True), "up"),
        (SetLink(mtu=1400, up=False), "mtu 1400, down"),
        (AddAddress(address=ip_interface("10.0.0.1/24")), "add address 10.0.0.1/24"),
        (SetSettings(settings=(("group", 1), ("flags", 2))), "group 1, flags 2"),
        (AddAltName(name="enp1"), "add alternative name enp1"),
        (DropAltName(name="enp1"), "remove alternative name enp1"),
        (SetPrivateFlags(flags=(("rx moderation", True),)), "set private flag rx moderation on"),
        (SetTuning(sizes=(("ring rx", 64), ("channels rx", 2))), "set ring rx 64, set channels rx 2"),
        (DetachXdp(), "detach XDP"),
        (DetachTcx(), "detach eBPF programs"),
        (JoinVrf(vrf=VRF), "join VRF red with table 100"),
        (DropVrf(vrf=VRF), "remove VRF red"),
        (RenameRdma(name="mlx5_0"), "rename to mlx5_0"),
        (AddRoute(route=ROUTE), "add route 10.9.0.0/16"),
        (AddRejectRoute(route=REJECT), "add route blackhole 10.8.0.0/16"),
        (RemoveRejectRoute(route=REJECT), "remove route blackhole 10.8.0.0/16"),
        (AddNeighbour(neighbour=NEIGHBOUR), "add neighbour 10.0.0.9 lladdr 02:aa:00:00:00:02"),
        (AddRule(rule=RULE), "add IPv4 rule 100: from 10.0.0.0/8 lookup 100"),
        (RemoveRule(rule=RULE), "remove IPv4 rule 100: from 10.0.0.0/8 lookup 100"),
    ],
)
def test_an_operation_is_described_in_words(op: Op, words: str) -> None:
    assert op.describe() == words


def _samples(kind: type[Op]) -> tuple[Op, ...]:
    """Operations of this type that change a link which came to the pod, or the RDMA device."""
    kernel = FakeKernel(other := rail_world())
    things = capture(kernel, kernel.host, rail(other).ifindex)
    some = (things.addresses[0], things.neighbours[0], *things.queues, *things.forwarding)
    samples: dict[type[Op], tuple[Op, ...]] = {
        SetLink: (SetLink(up=False), SetLink(name="mine", mac="02:aa:00:00:00:01", mtu=1300, txqlen=7, alias="mine")),
        AddAltName: (AddAltName(name="mine"),),
        DropAltName: (DropAltName(name="enp1"),),
        SetSettings: (SetSettings(settings=(("group", 9), ("linkmode", 1))),),
        SetSysctl: (SetSysctl(key="ipv4/conf/rp_filter", value="1"),),
        SetFeatures: (SetFeatures(features=(("tx-tcp-segmentation", False), ("tx-gso-partial", True))),),
        DetachXdp: (DetachXdp(),),
        DetachTcx: (DetachTcx(),),
        JoinVrf: (JoinVrf(vrf=VRF),),
        DropVrf: (DropVrf(vrf=VRF),),
        AddAddress: (AddAddress(address=ip_interface("192.168.7.1/24")),),
        SetPrivateFlags: (SetPrivateFlags(flags=(("legacy-rx", False),)),),
        SetTuning: (SetTuning(sizes=(("ring rx", 64), ("channels combined", 2))),),
        Inherit: (
            Inherit(brought=Brought(thing=things.addresses[0])),
            Inherit(brought=Brought(thing=things.neighbours[0])),
        ),
        Restore: tuple(Restore(thing=thing) for thing in some),
        Remove: tuple(Remove(thing=thing) for thing in some),
        AddRoute: (AddRoute(route=ROUTE),),
        AddNeighbour: (AddNeighbour(neighbour=NEIGHBOUR),),
        AddRejectRoute: (AddRejectRoute(route=REJECT),),
        RemoveRejectRoute: (RemoveRejectRoute(route=REJECT),),
        AddRule: (AddRule(rule=RULE),),
        RemoveRule: (RemoveRule(rule=RULE),),
        RenameRdma: (RenameRdma(name="mine0"),),
    }
    return samples[kind]


def _move(*, mtu: int | None, addresses: Interfaces) -> NetdevMove:
    world = rail_world()
    kernel = FakeKernel(world)
    link = capture(kernel, kernel.host, rail(world).ifindex)
    return NetdevMove(device="mlx5_0", link=link, pod_name="rdma0", pod_ifindex=7, mtu=mtu, addresses=addresses)


def test_the_rule_with_most_conditions_is_removed_first() -> None:
    wide = RoutingRule(priority=100, table=100, version=4)
    ops = (AddRule(rule=RULE), AddRule(rule=wide), AddRejectRoute(route=REJECT), AddNeighbour(neighbour=NEIGHBOUR))
    assert inverses_of((JoinVrf(vrf=VRF), *ops)) == (
        RemoveRule(rule=RULE),
        RemoveRejectRoute(route=REJECT),
        RemoveRule(rule=wide),
        DropVrf(vrf=VRF),
    )


@pytest.mark.parametrize("op", [AddRule(rule=RULE), AddRejectRoute(route=REJECT), JoinVrf(vrf=VRF)])
def test_the_inverse_of_an_inverse_is_the_operation(op: AddRule | AddRejectRoute | JoinVrf) -> None:
    inverse = op.inverse()
    assert isinstance(inverse, RemoveRule | RemoveRejectRoute | DropVrf)
    assert inverse.inverse() == op
