"""What brings a netdev back to what it was on the host."""

import errno
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from nri_rdma.attach.ops import (
    AddAltName,
    DropAltName,
    Op,
    Remove,
    Restore,
    SetLink,
    SetPrivateFlags,
    SetSettings,
    SetSysctl,
    SetTuning,
)
from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.port import KernelError, Namespace, Refused
from nri_rdma.attach.return_netdev import (
    PHASES,
    address_ops,
    departures,
    find_in_pod,
    find_on_host,
    left_changed,
    parked_name,
    remove_foreign_names,
    restore,
    settings_ops,
)
from nri_rdma.model.link import STABLE_SECRET, LinkState
from tests.fakes.kernel import FakeKernel, Forwarding, Queue, Route, World
from tests.rig.linkops import apply, capture
from tests.unit.attach.builders import POD_PATH
from tests.unit.attach.rails import rail, rail_world


def test_a_link_that_is_what_it_was_has_nothing_to_be_done_in_any_phase() -> None:
    world = rail_world()
    kernel = FakeKernel(world)
    wanted = capture(kernel, kernel.host, rail(world).ifindex)
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
        (SetTuning(sizes=(("ring rx", 64),)), SetTuning(sizes=(("ring rx", 1024),))),
        (SetPrivateFlags(flags=(("legacy-rx", False),)), SetPrivateFlags(flags=(("legacy-rx", True),))),
    ],
)
def test_a_departure_is_the_operation_that_ends_it(op: Op, departure: Op) -> None:
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    before, wanted = world.snapshot(), capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, op)
    assert departure in departures(capture(kernel, kernel.host, ifindex), wanted)
    restore(kernel, ifindex, wanted)
    assert world.snapshot() == before


def test_queues_and_forwarding_entries_are_what_they_were_whatever_stands_there() -> None:
    world = rail_world()
    kernel, link = FakeKernel(world), rail(world)
    before, wanted = world.snapshot(), capture(kernel, kernel.host, link.ifindex)
    link.remove_queue(link.queues[0])
    link.add_queue(Queue(kind="fq", handle="8001:"))
    link.add_queue(Queue(kind="pfifo", handle="9:", parent="8001:"))
    link.forwarding[:] = [Forwarding(mac="02:00:00:00:00:77")]
    found = capture(kernel, kernel.host, link.ifindex)
    ops = [op for op in departures(found, wanted) if isinstance(op, Remove | Restore)]
    assert [op.thing.text.split()[:2] for op in ops if isinstance(op, Remove)] == [
        ["pfifo", "9:"],
        ["fq", "8001:"],
        ["forwarding", "02:00:00:00:00:77"],
    ], "what stands in another one is removed first"
    restore(kernel, link.ifindex, wanted)
    assert world.snapshot() == before


def test_what_a_driver_does_not_take_back_is_told_once_and_the_rest_is_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = rail_world()
    kernel, link = Stubborn(world, errno.EINVAL), rail(world)
    wanted = capture(kernel, kernel.host, link.ifindex)
    link.tuning["ring rx"], link.mtu = 64, 1400
    restore(kernel, link.ifindex, wanted)
    (line,) = caplog.records
    assert line.getMessage() == "the driver's settings are not what the host had"
    assert vars(line)["what"] == ("ring rx 64 (was 1024)",)
    assert vars(line)["refused"] == ("set tuning: EINVAL",)
    assert link.mtu == wanted.mtu


@pytest.mark.parametrize("code", [errno.ENOBUFS, errno.EPERM, errno.ENODEV, errno.ETIMEDOUT])
def test_what_is_no_answer_of_a_driver_is_an_error_and_tried_again(code: int) -> None:
    world = rail_world()
    kernel, link = Stubborn(world, code), rail(world)
    wanted = capture(kernel, kernel.host, link.ifindex)
    link.tuning["ring rx"] = 64
    with pytest.raises(KernelError) as caught:
        restore(kernel, link.ifindex, wanted)
    assert caught.value.errno == code


class Stubborn(FakeKernel):
    """A kernel whose driver takes no sizes."""

    def __init__(self, world: World, code: int) -> None:
        super().__init__(world)
        self._code = code

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        taken = [op for op in ops if not isinstance(op, SetTuning)]
        error = KernelError("set tuning", self._code)
        refused = tuple(Refused(op=op, error=error) for op in ops if isinstance(op, SetTuning))
        return (*super().apply(namespace, index, taken), *refused)


@pytest.mark.parametrize(
    ("source", "code", "is_left_out"),
    [("10.5.0.2", errno.EINVAL, True), ("10.5.0.2", errno.ENOBUFS, False), ("10.0.0.1", errno.EINVAL, False)],
    ids=["of another link", "another error", "its own"],
)
def test_only_a_route_whose_source_has_left_another_link_is_left_out(
    caplog: pytest.LogCaptureFixture, source: str, code: int, is_left_out: bool
) -> None:
    world = rail_world()
    kernel, link = Sourceless(world, code), rail(world)
    link.routes.append(Route(to=ip_network("10.8.0.0/16"), src=ip_address(source)))
    wanted = capture(kernel, kernel.host, link.ifindex)
    link.mtu, link.routes[:] = 1400, [it for it in link.routes if str(it.to) != "10.8.0.0/16"]
    if is_left_out:
        restore(kernel, link.ifindex, wanted)
        (line,) = caplog.records
        assert line.getMessage() == "routes are not restored: the host no longer has their source address"
        assert vars(line)["errors"] == (f"add route: {errno.errorcode[code]}",)
    else:
        with pytest.raises(KernelError, match="add route"):
            restore(kernel, link.ifindex, wanted)
    assert link.mtu == wanted.mtu, "the rest is restored"


class Sourceless(FakeKernel):
    """A kernel that takes no routes with a source address."""

    def __init__(self, world: World, code: int) -> None:
        super().__init__(world)
        self._code = code

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        kept_out = [op for op in ops if isinstance(op, Restore) and " src " in op.thing.text]
        refused = tuple(Refused(op=op, error=KernelError("add route", self._code)) for op in kept_out)
        return (*super().apply(namespace, index, [op for op in ops if op not in kept_out]), *refused)


def test_a_difference_of_data_center_bridging_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = rail_world()
    kernel, link = FakeKernel(world), rail(world)
    link.dcb = "pfc enabled 0x08\napp table 1:35093=3"
    wanted = capture(kernel, kernel.host, link.ifindex)
    link.dcb = "pfc enabled 0x00\napp table 1:35093=3"
    restore(kernel, link.ifindex, wanted)
    (line,) = caplog.records
    assert vars(line)["what"] == ("pfc enabled 0x00 (was 0x08)",)


def test_what_is_set_of_adaptive_coalescing_hides_the_sizes_that_are_set_again() -> None:
    wanted = replace(virtual_rail(), tuning="coalesce adaptive-rx 0\ncoalesce rx-usecs 3")
    found = replace(wanted, tuning="coalesce adaptive-rx 1")
    assert departures(found, wanted) == (SetTuning(sizes=(("coalesce adaptive-rx", 0), ("coalesce rx-usecs", 3))),)
    assert departures(wanted, found) == (SetTuning(sizes=(("coalesce adaptive-rx", 1),)),)
    assert departures(replace(found, tuning=""), wanted) == ()


def test_alternative_names_in_another_order_are_given_again_from_the_first_wrong_one() -> None:
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    wanted = replace(capture(kernel, kernel.host, ifindex), alt_names=("enp1", "enp3", "enp2"))
    apply(kernel, kernel.host, ifindex, AddAltName(name="enp3"))
    expected = (DropAltName(name="enp3"), AddAltName(name="enp3"), DropAltName(name="enp2"), AddAltName(name="enp2"))
    assert departures(capture(kernel, kernel.host, ifindex), wanted) == expected
    restore(kernel, ifindex, wanted)
    assert rail(world).alt_names == ["enp1", "enp3", "enp2"]


def test_what_the_way_up_sets_is_set_again_after_it() -> None:
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    apply(kernel, kernel.host, ifindex, SetSysctl(key="ipv6/conf/mtu", value="1400"))
    before, wanted = world.snapshot(), capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, SetLink(up=False))
    restore(kernel, ifindex, wanted)
    assert world.snapshot() == before


def test_the_secret_of_stable_addresses_is_the_first_sysctl_to_be_set() -> None:
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    found = capture(kernel, kernel.host, ifindex)
    wanted = replace(found, sysctls=f"ipv4/conf/rp_filter 1\n{STABLE_SECRET} fd00::1\nipv6/conf/accept_ra 2")
    assert [op.key for op in departures(found, wanted) if isinstance(op, SetSysctl)] == [
        STABLE_SECRET,
        "ipv4/conf/rp_filter",
        "ipv6/conf/accept_ra",
    ]


def test_a_sysctl_that_the_link_has_no_more_is_not_set() -> None:
    """Its family or its kernel has gone; only a secret has no file while there is none."""
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    found = replace(capture(kernel, kernel.host, ifindex), sysctls="")
    wanted = replace(found, sysctls=f"ipv4/conf/rp_filter 1\n{STABLE_SECRET} fd00::1")
    assert [op.key for op in departures(found, wanted) if isinstance(op, SetSysctl)] == [STABLE_SECRET]


@pytest.mark.parametrize(
    ("changed", "is_it"),
    [
        pytest.param({}, True, id="number and MAC"),
        pytest.param({"ifindex": 900}, True, id="name and MAC"),
        pytest.param({"ifindex": 900, "name": "other"}, False, id="MAC only"),
        pytest.param({"mac": "02:00:00:00:00:99"}, False, id="number and name only"),
        pytest.param({"kind": "macvlan"}, False, id="another kind"),
        pytest.param({"peer": 77}, False, id="another peer"),
        pytest.param({"peer_netns": 4}, False, id="a peer of the same number in another namespace"),
        pytest.param({"parent": "0000:00:01.0"}, False, id="a physical one"),
    ],
)
def test_a_virtual_netdev_that_came_home_is_known_by_its_mac(changed: dict[str, object], is_it: bool) -> None:
    wanted = virtual_rail()
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    found = replace(wanted, **changed)  # type: ignore[arg-type]  # fields by name
    assert find_on_host((found,), move) == (found if is_it else None)


def test_a_physical_netdev_is_known_by_its_function_where_that_has_no_other() -> None:
    world = rail_world()
    kernel = FakeKernel(world)
    wanted = replace(capture(kernel, kernel.host, rail(world).ifindex), permanent_mac="")
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    changed = replace(wanted, ifindex=900, name="other", mac="02:00:00:00:00:98")
    second = replace(changed, ifindex=901, name="another")
    assert find_on_host((changed, replace(second, parent="pci/0000:12:00.0")), move) == changed
    assert find_on_host((changed, second), move) is None
    assert find_on_host((changed, replace(second, name=wanted.name)), move) == replace(second, name=wanted.name)


def test_a_virtual_netdev_of_an_older_journal_is_known_without_its_peer() -> None:
    found = virtual_rail()
    wanted = replace(found, peer=0)
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    assert find_on_host((found,), move) == found


def test_a_virtual_netdev_that_was_parked_is_known_by_the_name_that_it_got() -> None:
    wanted = virtual_rail()
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    parked = replace(wanted, ifindex=900, name=parked_name(wanted), mac="02:00:00:00:00:99")
    assert find_on_host((parked,), move) == parked
    assert find_on_host((replace(parked, kind="macvlan"),), move) is None


def test_sysctls_that_can_never_be_written_are_told_and_the_rest_is_restored(caplog: pytest.LogCaptureFixture) -> None:
    """Another try would fail as well, and the device would be kept for ever."""
    world = rail_world()
    kernel, ifindex = ReadOnlySysctls(world), rail(world).ifindex
    wanted = capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, SetLink(mtu=1400))
    rail(world).sysctls["ipv4/conf/rp_filter"] = "0"
    restore(kernel, ifindex, wanted)
    (line,) = caplog.records
    assert line.getMessage() == "sysctls are not restored: /proc/sys is read-only for the daemon"
    assert vars(line)["sysctls"] == "ipv4/conf/rp_filter"
    assert capture(kernel, kernel.host, ifindex).mtu == wanted.mtu


class ReadOnlySysctls(FakeKernel):
    """A kernel that takes no sysctl."""

    def apply(self, namespace: Namespace, index: int, ops: Sequence[Op]) -> tuple[Refused, ...]:
        taken = [op for op in ops if not isinstance(op, SetSysctl)]
        error = KernelError("write a sysctl", errno.EROFS)
        refused = tuple(Refused(op=op, error=error) for op in ops if isinstance(op, SetSysctl))
        return (*super().apply(namespace, index, taken), *refused)


def virtual_rail() -> LinkState:
    """A link of the host without a device below it."""
    world = rail_world()
    kernel = FakeKernel(world)
    return replace(capture(kernel, kernel.host, rail(world).ifindex), kind="veth", parent="", permanent_mac="", peer=5)


def test_of_alternative_names_only_the_pods_own_are_removed_from_what_the_kernel_will_bring_home() -> None:
    world = rail_world()
    kernel, link = FakeKernel(world), rail(world)
    wanted = capture(kernel, kernel.host, link.ifindex)
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    namespace = kernel.open_namespace(POD_PATH)
    kernel.move_link(kernel.host, link.ifindex, namespace, "net1", as_ifindex=7)
    link.alt_names.append("mine")
    remove_foreign_names(kernel, namespace, move)
    assert link.alt_names == ["enp1", "enp2"]


def test_only_what_was_read_of_a_driver_can_be_left_changed() -> None:
    wanted = replace(virtual_rail(), tuning="ring rx 1024\nchannels combined 8")
    found = replace(wanted, tuning="ring rx 64\nchannels combined 8\nring tx 1")
    assert left_changed(found, wanted) == ("ring rx 64 (was 1024)",)
    assert left_changed(found, replace(wanted, tuning="")) == ()
    assert left_changed(replace(found, tuning=""), wanted) == ()


def test_a_link_that_will_go_up_makes_no_address_before_its_settings_are_what_they_were() -> None:
    world = rail_world()
    kernel, ifindex = FakeKernel(world), rail(world).ifindex
    wanted = capture(kernel, kernel.host, ifindex)
    apply(kernel, kernel.host, ifindex, SetLink(up=False))
    apply(kernel, kernel.host, ifindex, SetSettings(settings=(("group", 9),)))
    (op,) = settings_ops(capture(kernel, kernel.host, ifindex), wanted)
    assert isinstance(op, SetSettings)
    assert sorted(op.settings) == [("addr_gen_mode", 1), ("group", 4)]


def test_when_an_address_is_removed_all_others_are_added_again() -> None:
    """A primary one takes its secondary ones along."""
    world = rail_world()
    kernel = FakeKernel(world)
    wanted = capture(kernel, kernel.host, rail(world).ifindex)
    first, *others = wanted.addresses
    foreign = replace(first, text="192.0.2.9/24 peer 192.0.2.9 flags 0x0", kernel_made=False)
    found = replace(wanted, addresses=(first, foreign, *others))
    assert address_ops(found, wanted) == (Remove(thing=foreign), *(Restore(thing=it) for it in wanted.addresses))
    assert address_ops(replace(wanted, addresses=tuple(others)), wanted) == (Restore(thing=first),)


def test_a_virtual_netdev_is_known_in_the_pod_by_its_number_and_kind_alone() -> None:
    world = rail_world()
    kernel = FakeKernel(world)
    wanted = replace(capture(kernel, kernel.host, rail(world).ifindex), parent="", permanent_mac="", kind="macvlan")
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    own = replace(wanted, ifindex=7, name="renamed")
    others = (replace(own, ifindex=8, name="net1"), replace(own, kind="veth"))
    assert find_in_pod((*others, own), move) is own
    assert find_in_pod(others, move) is None


def test_of_several_netdevs_of_one_function_the_permanent_address_tells_which_is_meant() -> None:
    world = rail_world()
    kernel = FakeKernel(world)
    wanted = capture(kernel, kernel.host, rail(world).ifindex)
    move = NetdevMove(device="mlx5_0", link=wanted, pod_name="net1", pod_ifindex=7, mtu=None, addresses=())
    own = replace(wanted, ifindex=9, name="renamed")
    sibling = replace(wanted, permanent_mac="02:99:00:00:00:02", ifindex=7, name="net1")
    assert find_in_pod((sibling, own), move) is own
