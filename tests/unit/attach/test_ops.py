"""What each operation on a link declares holds: who knows it, and what takes it away again."""

import inspect
from dataclasses import fields, is_dataclass, replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest

from nri_rdma.attach import ops as ops_module
from nri_rdma.attach.ops import (
    OP_TYPES,
    AddAddress,
    AddAltName,
    DetachXdp,
    DropAltName,
    GoneWith,
    Op,
    Remove,
    RenameRdma,
    Restore,
    SetLink,
    SetSettings,
    SetSysctl,
)
from nri_rdma.attach.plan import NetdevMove, ops_of
from nri_rdma.attach.return_netdev import PHASES, departures, restore
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.host.netlink.codec import CODECS
from nri_rdma.model.device import RdmaNetns
from nri_rdma.model.link import STABLE_SECRET, LinkState
from nri_rdma.model.nldev import RdmaDeviceState
from nri_rdma.observe.spans import Recorder
from tests.fakes.kernel import CHANGES, Address, FakeKernel, Link, Neighbour, Route, World
from tests.rig.linkops import apply, capture
from tests.unit.attach.builders import POD_PATH, Interfaces, make_device, make_placed, record_of

SPANS = Recorder(capacity=1)
GUID = "0000:0000:0000:0001"
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
        world = _world()
        before = world.snapshot()
        for name in kind.fields:
            changed = _world()
            _change(changed, kind, name)
            assert changed.snapshot() != before, name


def _change(world: World, kind: type[Op], field: str) -> None:
    """Another value of a field of the host's link, or of the RDMA device."""
    item = world.rdma[0] if kind is RenameRdma else _rail(world)
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
    world = _world()
    kernel = FakeKernel(world)
    pod = kernel.open_namespace(POD_PATH)
    ifindex = _rail(world).ifindex
    kernel.move_link(kernel.host, ifindex, pod, "rdma0", as_ifindex=ifindex)
    kernel.move_link(pod, ifindex, kernel.host, "rail0", as_ifindex=ifindex)
    moved = {name: getattr(capture(kernel, kernel.host, ifindex), name) for name in kind.fields}
    kernel.move_link(kernel.host, ifindex, pod, "rdma0", as_ifindex=ifindex)
    for op in _samples(kind):
        apply(kernel, pod, ifindex, op)
    kernel.move_link(pod, ifindex, kernel.host, "rail0", as_ifindex=ifindex)
    assert {name: getattr(capture(kernel, kernel.host, ifindex), name) for name in kind.fields} == moved


@pytest.mark.parametrize("kind", EVERY)
def test_an_undo_takes_away_what_the_operation_did_in_the_pod(kind: type[Op]) -> None:
    world = _world()
    before, kernel = world.snapshot(), FakeKernel(world)
    pod = kernel.open_namespace(POD_PATH)
    rail = next(link for link in kernel.links(kernel.host) if link.name == "rail0")
    device = replace(make_device("mlx5_0", [rail]), node_guid=GUID)
    record = record_of(kernel, pod, make_placed((device,)))
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
        (DetachXdp(), "detach XDP"),
        (RenameRdma(name="mlx5_0"), "rename to mlx5_0"),
    ],
)
def test_an_operation_is_described_in_words(op: Op, words: str) -> None:
    assert op.describe() == words


def test_a_link_that_is_what_it_was_has_nothing_to_be_done_in_any_phase() -> None:
    world = _world()
    kernel = FakeKernel(world)
    wanted = capture(kernel, kernel.host, _rail(world).ifindex)
    assert [phase(wanted, wanted) for phase in PHASES] == [()] * len(PHASES)
    assert departures(wanted, wanted) == ()


@pytest.mark.parametrize(
    ("op", "departure"),
    [
        (SetLink(mtu=1400), SetLink(mtu=9000, txqlen=700, alias="of the left")),
        (SetLink(up=False), SetLink(up=True)),
        (DropAltName(name="enp1"), AddAltName(name="enp1")),
        (AddAltName(name="other"), DropAltName(name="other")),
        (SetSettings(settings=(("group", 9),)), SetSettings(settings=(("group", 4),))),
        (SetSysctl(key="ipv4/conf/rp_filter", value="0"), SetSysctl(key="ipv4/conf/rp_filter", value="2")),
    ],
)
def test_a_departure_is_the_operation_that_ends_it(op: Op, departure: Op) -> None:
    world = _world()
    kernel, ifindex = FakeKernel(world), _rail(world).ifindex
    before, wanted = world.snapshot(), capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, op)
    assert departure in departures(capture(kernel, kernel.host, ifindex), wanted)
    restore(kernel, ifindex, wanted)
    assert world.snapshot() == before


def test_alternative_names_in_another_order_are_given_again_from_the_first_wrong_one() -> None:
    world = _world()
    kernel, ifindex = FakeKernel(world), _rail(world).ifindex
    wanted = replace(capture(kernel, kernel.host, ifindex), alt_names=("enp1", "enp3", "enp2"))
    apply(kernel, kernel.host, ifindex, AddAltName(name="enp3"))
    expected = (DropAltName(name="enp3"), AddAltName(name="enp3"), DropAltName(name="enp2"), AddAltName(name="enp2"))
    assert departures(capture(kernel, kernel.host, ifindex), wanted) == expected
    restore(kernel, ifindex, wanted)
    assert _rail(world).alt_names == ["enp1", "enp3", "enp2"]


def test_what_the_way_up_sets_is_set_again_after_it() -> None:
    world = _world()
    kernel, ifindex = FakeKernel(world), _rail(world).ifindex
    apply(kernel, kernel.host, ifindex, SetSysctl(key="ipv6/conf/mtu", value="1400"))
    before, wanted = world.snapshot(), capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, SetLink(up=False))
    restore(kernel, ifindex, wanted)
    assert world.snapshot() == before


def test_the_secret_of_stable_addresses_is_the_first_sysctl_to_be_set() -> None:
    world = _world()
    kernel, ifindex = FakeKernel(world), _rail(world).ifindex
    found = capture(kernel, kernel.host, ifindex)
    wanted = replace(found, sysctls=f"ipv4/conf/rp_filter 1\n{STABLE_SECRET} fd00::1\nipv6/conf/accept_ra 2")
    assert [op.key for op in departures(found, wanted) if isinstance(op, SetSysctl)] == [
        STABLE_SECRET,
        "ipv4/conf/rp_filter",
        "ipv6/conf/accept_ra",
    ]


def _samples(kind: type[Op]) -> tuple[Op, ...]:
    """Operations of this type that change a link which came to the pod, or the RDMA device."""
    kernel = FakeKernel(other := _world())
    things = capture(kernel, kernel.host, _rail(other).ifindex)
    usual = things.addresses[0]
    samples: dict[type[Op], tuple[Op, ...]] = {
        SetLink: (SetLink(up=False), SetLink(name="mine", mac="02:aa:00:00:00:01", mtu=1300, txqlen=7, alias="mine")),
        AddAltName: (AddAltName(name="mine"),),
        DropAltName: (DropAltName(name="enp1"),),
        SetSettings: (SetSettings(settings=(("group", 9), ("linkmode", 1))),),
        SetSysctl: (SetSysctl(key="ipv4/conf/rp_filter", value="1"),),
        DetachXdp: (DetachXdp(),),
        AddAddress: (AddAddress(address=ip_interface("192.168.7.1/24")),),
        Restore: (Restore(thing=usual), Restore(thing=things.neighbours[0])),
        Remove: (Remove(thing=usual), Remove(thing=things.neighbours[0])),
        RenameRdma: (RenameRdma(name="mine0"),),
    }
    return samples[kind]


def _move(*, mtu: int | None, addresses: Interfaces) -> NetdevMove:
    world = _world()
    kernel = FakeKernel(world)
    link = capture(kernel, kernel.host, _rail(world).ifindex)
    return NetdevMove(device="mlx5_0", link=link, pod_name="rdma0", pod_ifindex=7, mtu=mtu, addresses=addresses)


def _rail(world: World) -> Link:
    return next(link for link in world.host.links.values() if link.name.startswith("rail0"))


def _world() -> World:
    """A host with a link that has everything, and a pod."""
    world = World()
    world.add_namespace(POD_PATH)
    link = world.add_link(world.host, "rail0", kind="", parent="pci/0000:11:00.0", permanent_mac="02:99:00:00:00:01")
    link.mtu, link.txqlen, link.alias, link.alt_names = 9000, 700, "of the left", ["enp1", "enp2"]
    link.settings |= {"group": 4}
    link.sysctls |= {"ipv4/conf/rp_filter": "2"}
    link.add_address(Address(interface=ip_interface("10.0.0.1/24")))
    link.raise_up()
    link.add_route(Route(to=ip_network("10.202.0.0/16"), via=ip_address("10.0.0.9"), metric=5))
    link.neighbours.append(Neighbour(address=ip_address("10.0.0.99"), mac="02:00:00:00:00:99"))
    world.rdma_netns = RdmaNetns.EXCLUSIVE
    world.add_rdma("mlx5_0", parent=link.parent, node_guid=GUID)
    return world
