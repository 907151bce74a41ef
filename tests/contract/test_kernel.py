"""What attach.port.Kernel promises, held by the fake kernel and by Linux."""

import errno
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_interface, ip_network
from typing import Any

import pytest

from nri_rdma.attach.ops import (
    AddAddress,
    AddAltName,
    AddNeighbour,
    AddRejectRoute,
    AddRoute,
    AddRule,
    DetachTcx,
    DropVrf,
    JoinVrf,
    SetFeatures,
    SetLink,
    SetPrivateFlags,
    SetSysctl,
    SetTuning,
    inverses_of,
)
from nri_rdma.attach.port import KernelError, Namespace
from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.link import STABLE_SECRET, LinkState, features_of, sysctls_of, tuning_of
from nri_rdma.model.network import SCOPE_LINK, NeighbourConfig, NextHop, RouteConfig, RouteType, RoutingRule, VrfConfig
from nri_rdma.model.routing import Routing
from tests.contract.machines import HOST, POD, LinuxMachine, Machine, Seen
from tests.rig.deadline import wait_until
from tests.rig.linkops import (
    add_address,
    apply,
    capture,
    configure,
    detach_xdp,
    remove,
    rename_rdma,
    replay,
    set_alt_names,
    set_link,
    set_settings,
    set_sysctls,
)

MAC, OTHER_MAC = "02:11:00:00:00:01", "02:11:00:00:00:02"
LINK_LOCAL = "fe80::11:ff:fe00:1/64"
LINK_LOCAL_ROUTE = "fe80::/64 metric 256"


@pytest.fixture
def rail(machine: Machine) -> int:
    """A link of the host that is down and bare."""
    return machine.add_link("rail0", MAC)


def _bare(name: str) -> Seen:
    none: frozenset[str] = frozenset()
    return Seen(
        name=name,
        mac=MAC,
        mtu=1500,
        txqlen=1000,
        alias="",
        alt_names=none,
        up=False,
        addresses=none,
        routes=none,
        neighbours=none,
    )


def _eventually(machine: Machine, ifindex: int, expected: Seen) -> None:
    """What IPv6 does takes its own time."""
    wait_until(lambda: machine.see().get(ifindex) == expected, f"{expected} (is {machine.see().get(ifindex)})")


def _refused(errnos: set[int], work: Callable[[], object]) -> None:
    with pytest.raises(KernelError) as caught:
        work()
    assert caught.value.errno in errnos


def test_whether_links_may_be_changed_is_asked_without_changing_any(machine: Machine) -> None:
    machine.add_link("rail0", "02:00:00:00:00:01")
    before = machine.see()
    assert machine.kernel.may_change_links()
    assert machine.see() == before


@pytest.mark.root
def test_who_has_no_right_to_links_is_told_so() -> None:
    asks = "from nri_rdma.host.netlink.linux_kernel import LinuxKernel; print(LinuxKernel().may_change_links())"
    command = ("setpriv", "--bounding-set", "-net_admin", "--inh-caps", "-all", sys.executable, "-c", asks)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_link_is_told_as_it_is(machine: Machine, rail: int) -> None:
    machine.set("rail0", alias="left", alt_name="enp1")
    (state,) = (link for link in machine.kernel.links(machine.kernel.host) if link.ifindex == rail)
    assert (state.name, state.kind, state.mac, state.mtu, state.txqlen) == ("rail0", "veth", MAC, 1500, 1000)
    assert (state.alias, state.alt_names, state.up) == ("left", ("enp1",), False)
    assert (state.parent, state.permanent_mac, state.master, state.lower, state.xdp) == ("", "", 0, 0, False)
    assert dict(state.settings)["addr_gen_mode"] == 0
    captured = capture(machine.kernel, machine.kernel.host, rail)
    assert captured.tcx == ()
    fixed = features_of(captured.fixed_features)
    assert fixed["rx-lro"] is False
    assert "" not in fixed
    bare = replace(captured, sysctls="", features="", fixed_features="", tuning="", private_flags="", tcx=None)
    assert bare == state


def test_what_is_not_there_is_told_with_its_errno(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    pod = kernel.open_namespace(machine.pod_path)
    _refused({errno.ENOENT}, lambda: kernel.open_namespace(machine.pod_path + "-no"))
    _refused({errno.ENODEV}, lambda: capture(kernel, host, 4711))
    _refused({errno.ENODEV}, lambda: set_link(kernel, host, 4711, up=True))
    _refused({errno.ENODEV}, lambda: set_settings(kernel, host, 4711, (("group", 1),)))
    _refused({errno.ENODEV}, lambda: set_alt_names(kernel, host, 4711, add=("a",), remove=()))
    _refused({errno.ENODEV}, lambda: add_address(kernel, host, 4711, ip_interface("10.0.0.1/24")))
    _refused({errno.ENODEV}, lambda: kernel.move_link(host, 4711, pod, "rdma0"))
    _refused({errno.ENODEV}, lambda: capture(kernel, pod, rail))
    pod.close()


def test_a_link_moves_under_name_and_number_and_loses_what_a_move_loses(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    machine.set("rail0", up=True, alias="left", alt_name="enp1")
    machine.add_address("rail0", "10.0.0.1/24")
    machine.add_neighbour("rail0", "10.0.0.9", OTHER_MAC)
    set_link(kernel, kernel.host, rail, mtu=1400, txqlen=7)
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=77)
    kept = replace(_bare("rdma0"), mtu=1400, txqlen=7, alias="left", alt_names=frozenset({"enp1"}))
    assert machine.see(POD)[77] == kept
    assert rail not in machine.see()
    kernel.move_link(pod, 77, kernel.host, "rail0", as_ifindex=rail)
    assert machine.see()[rail] == replace(kept, name="rail0")
    pod.close()


def test_a_moved_link_keeps_its_number_where_it_is_free(machine: Machine) -> None:
    free, taken = machine.add_link("rail0", MAC), machine.add_link("rail1", OTHER_MAC)
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, free, pod, "rdma0")
    assert machine.see(POD)[free].name == "rdma0"
    kernel.move_link(pod, free, kernel.host, "rail0")
    kernel.move_link(kernel.host, free, pod, "rdma0", as_ifindex=taken)
    kernel.move_link(kernel.host, taken, pod, "rdma1")
    assert machine.see(POD)[taken].name == "rdma0"
    assert sorted(link.name for link in machine.see(POD).values() if link.name != "lo") == ["rdma0", "rdma1"]
    pod.close()


def test_a_move_onto_a_taken_number_or_alternative_name_changes_nothing(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    taken = machine.add_link("eth0", OTHER_MAC, POD)
    pod = kernel.open_namespace(machine.pod_path)
    machine.set("rail0", up=True, alt_name="eth1")
    machine.add_address("rail0", "10.0.0.1/24")
    wait_until(lambda: len(machine.see()[rail].routes) == 2, "connected routes")
    before = machine.see()
    _refused({errno.EBUSY}, lambda: kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=taken))
    set_alt_names(kernel, pod, taken, add=("eth1",), remove=())
    _refused({errno.EEXIST}, lambda: kernel.move_link(kernel.host, rail, pod, "rdma1"))
    assert machine.see() == before
    pod.close()


def test_a_move_onto_a_taken_name_may_leave_the_link_there_under_its_old_name(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    machine.add_link("eth0", OTHER_MAC, POD)
    pod = kernel.open_namespace(machine.pod_path)
    _refused({errno.EEXIST}, lambda: kernel.move_link(kernel.host, rail, pod, "eth0", as_ifindex=77))
    assert rail not in machine.see()
    assert machine.see(POD)[77] == _bare("rail0")
    pod.close()


def test_a_move_takes_the_new_name_at_once_where_the_old_one_is_taken(machine: Machine) -> None:
    kernel = machine.kernel
    link = machine.add_link("eth0", MAC)
    machine.add_link("eth0", OTHER_MAC, POD)
    pod = kernel.open_namespace(machine.pod_path)
    _refused({errno.EEXIST}, lambda: kernel.move_link(kernel.host, link, pod, "eth0", as_ifindex=77))
    assert machine.see()[link] == _bare("eth0")
    kernel.move_link(kernel.host, link, pod, "rdma0", as_ifindex=77)
    assert machine.see(POD)[77] == _bare("rdma0")
    pod.close()


def test_name_mac_numbers_and_alias_are_set(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    set_link(kernel, host, rail, name="rail7", mac=OTHER_MAC, mtu=1400, txqlen=5, alias="of the left")
    changed = replace(_bare("rail7"), mac=OTHER_MAC, mtu=1400, txqlen=5, alias="of the left")
    assert machine.see()[rail] == changed
    set_link(kernel, host, rail, alias="", txqlen=0)
    assert machine.see()[rail] == replace(changed, alias="", txqlen=0)
    _refused({errno.EINVAL}, lambda: set_link(kernel, host, rail, mtu=10))
    machine.add_link("rail8", MAC)
    _refused({errno.EEXIST}, lambda: set_link(kernel, host, rail, name="rail8"))
    assert machine.see()[rail] == replace(changed, alias="", txqlen=0)


def test_alternative_names_are_added_and_removed(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    set_alt_names(kernel, host, rail, add=("enp1", "enp2"), remove=())
    set_alt_names(kernel, host, rail, add=("enp3",), remove=("enp1",))
    set_alt_names(kernel, host, rail, add=(), remove=())
    assert machine.see()[rail].alt_names == {"enp2", "enp3"}
    assert set(capture(kernel, host, rail).alt_names) == {"enp2", "enp3"}
    other = machine.add_link("rail1", OTHER_MAC)
    _refused({errno.EEXIST}, lambda: set_alt_names(kernel, host, other, add=("enp2",), remove=()))
    _refused({errno.EEXIST}, lambda: set_alt_names(kernel, host, other, add=("rail0",), remove=()))


def test_settings_are_set_and_told(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    set_settings(kernel, host, rail, (("group", 9), ("gso_max_size", 4096), ("addr_gen_mode", 1), ("flags", 0x1280)))
    told = dict(capture(kernel, host, rail).settings)
    assert (told["group"], told["gso_max_size"], told["addr_gen_mode"], told["flags"]) == (9, 4096, 1, 0x1280)
    set_settings(kernel, host, rail, (("group", 0),))
    told = dict(capture(kernel, host, rail).settings)
    assert (told["group"], told["gso_max_size"], told["flags"]) == (0, 4096, 0x1280)


def test_link_mode_and_broadcast_address_are_set_and_told(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    before = dict(capture(kernel, host, rail).settings)
    assert (before["linkmode"], before["broadcast"]) == (0, 0xFFFFFFFFFFFF)
    set_settings(kernel, host, rail, (("linkmode", 1), ("broadcast", 0x060504030201)))
    told = dict(capture(kernel, host, rail).settings)
    assert (told["linkmode"], told["broadcast"]) == (1, 0x060504030201)
    set_settings(kernel, host, rail, tuple(before.items()))
    assert dict(capture(kernel, host, rail).settings) == before


def test_xdp_may_be_detached_where_there_is_none(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    before = capture(kernel, host, rail)
    detach_xdp(kernel, host, rail)
    assert capture(kernel, host, rail) == before
    _refused({errno.ENODEV}, lambda: detach_xdp(kernel, host, 4711))


def test_a_link_is_configured_in_one(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    addresses = [ip_interface(text) for text in ("10.0.0.1/24", "fd00::1/64")]
    configure(kernel, host, rail, mtu=1400, addresses=addresses)
    routes = {"10.0.0.0/24 src 10.0.0.1", "fd00::/64 metric 256", LINK_LOCAL_ROUTE}
    up = replace(_bare("rail0"), mtu=1400, up=True, routes=frozenset(routes))
    _eventually(machine, rail, replace(up, addresses=frozenset({"10.0.0.1/24", "fd00::1/64", LINK_LOCAL})))
    other = machine.add_link("rail1", OTHER_MAC)
    configure(kernel, host, other, mtu=None, addresses=())
    assert (machine.see()[other].mtu, machine.see()[other].up) == (1500, True)


def test_what_is_refused_of_a_configuration_is_told_and_the_rest_is_done(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    address = ip_interface("10.0.0.1/24")
    _refused({errno.EINVAL}, lambda: configure(kernel, host, rail, mtu=10, addresses=[address, address]))
    seen = machine.see()[rail]
    assert (seen.mtu, seen.up, "10.0.0.1/24" in seen.addresses) == (1500, True, True)
    _refused({errno.EEXIST}, lambda: configure(kernel, host, rail, mtu=None, addresses=[address]))
    _refused({errno.ENODEV}, lambda: configure(kernel, host, 4711, mtu=None, addresses=()))


def test_operations_are_all_tried_in_order_and_those_refused_are_told(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    address = AddAddress(address=ip_interface("10.0.0.1/24"))
    ops = (
        SetLink(mtu=10),
        address,
        SetSysctl(key="ipv4/conf/no_such_thing", value="1"),
        AddAltName(name="enp1"),
        address,
        SetSysctl(key="ipv4/conf/rp_filter", value="2"),
        AddAltName(name="enp1"),
    )
    refused = kernel.apply(host, rail, ops)
    assert [(it.op, it.error.errno) for it in refused] == [
        (ops[0], errno.EINVAL),
        (ops[2], errno.ENOENT),
        (ops[4], errno.EEXIST),
        (ops[6], errno.EEXIST),
    ]
    seen = machine.see()[rail]
    assert seen.addresses == {"10.0.0.1/24"}
    assert seen.alt_names == {"enp1"}
    assert machine.sysctl("rail0", "ipv4/conf/rp_filter") == "2"
    assert kernel.apply(host, rail, ()) == ()


def test_sysctls_of_a_link_are_told_and_set(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    wanted = {
        "ipv4/conf/rp_filter": "2",
        "ipv4/conf/arp_ignore": "1",
        "ipv4/neigh/base_reachable_time_ms": "40000",
        "ipv6/conf/accept_ra": "2",
    }
    before = sysctls_of(capture(kernel, host, rail).sysctls)
    assert wanted.keys() <= before.keys()
    machine.set_sysctl("rail0", "ipv6/conf/accept_ra", "0")
    assert sysctls_of(capture(kernel, host, rail).sysctls) == before | {"ipv6/conf/accept_ra": "0"}
    set_sysctls(kernel, host, rail, tuple(wanted.items()))
    assert {name: machine.sysctl("rail0", name) for name in wanted} == wanted
    assert sysctls_of(capture(kernel, host, rail).sysctls) == before | wanted
    _refused({errno.ENODEV}, lambda: set_sysctls(kernel, host, 4711, tuple(wanted.items())))


def test_a_sysctl_that_cannot_be_set_does_not_keep_the_others(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    sysctls = (("ipv4/conf/no_such_thing", "1"), ("ipv4/conf/rp_filter", "2"))
    _refused({errno.ENOENT}, lambda: set_sysctls(kernel, host, rail, sysctls))
    assert machine.sysctl("rail0", "ipv4/conf/rp_filter") == "2"


def test_features_of_a_link_are_told_and_set_and_follow_it_into_the_pod(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    before = dict(features_of(capture(kernel, host, rail).features))
    assert before["tx-tcp-segmentation"]
    machine.set_feature("rail0", "tx-tcp-segmentation", "off")
    assert features_of(capture(kernel, host, rail).features) == before | {"tx-tcp-segmentation": False}
    changes = (("tx-tcp-segmentation", True), ("tx-checksum-ip-generic", False))
    apply(kernel, host, rail, SetFeatures(features=changes))
    assert features_of(capture(kernel, host, rail).features) == before | dict(changes)
    assert machine.feature("rail0", "tx-checksum-ip-generic") == "off"
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0", as_ifindex=rail)
    assert features_of(capture(kernel, pod, rail).features) == before | dict(changes)
    apply(kernel, pod, rail, SetFeatures(features=(("tx-checksum-ip-generic", True),)))
    assert machine.feature("rdma0", "tx-checksum-ip-generic", POD) == "on"
    pod.close()


def test_a_feature_that_no_link_has_is_refused(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    no_such = SetFeatures(features=(("no-such-feature", True),))
    _refused({errno.EOPNOTSUPP, errno.EINVAL}, lambda: apply(kernel, host, rail, no_such))
    known = SetFeatures(features=(("tx-tcp-segmentation", False),))
    _refused({errno.ENODEV}, lambda: apply(kernel, host, 4711, known))


def _shape(machine: Machine) -> set[str]:
    """Disciplines and classes, parents first."""
    machine.add_queue("rail0", "htb", "1:", options="default 0x10")
    machine.add_queue("rail0", "htb", "1:1", options="rate 100mbit quantum 1500")
    machine.add_queue("rail0", "htb", "1:10", "1:1", "rate 50mbit ceil 80mbit quantum 1500")
    machine.add_queue("rail0", "tbf", "10:", "1:10", "rate 1mbit burst 32kbit latency 400ms")
    machine.add_queue("rail0", "clsact", "ffff:", "ingress")
    return {"htb 1: root", "htb 1:1 root", "htb 1:10 1:1", "tbf 10: 1:10", "clsact ffff: ingress"}


def test_queues_are_lost_with_a_move_and_can_be_replayed(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    shaped = _shape(machine)
    assert machine.queues("rail0") == shaped
    state = capture(kernel, host, rail)
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0", as_ifindex=rail)
    assert machine.queues("rdma0", POD) == set()
    kernel.move_link(pod, rail, host, "rail0", as_ifindex=rail)
    pod.close()
    assert machine.queues("rail0") == set()
    for _ in range(2):
        for thing in state.queues:
            replay(kernel, host, rail, thing)
        assert machine.queues("rail0") == shaped
    assert [it.text for it in capture(kernel, host, rail).queues] == [it.text for it in state.queues]


def test_queues_can_be_removed_and_removed_again(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _shape(machine)
    queues = capture(kernel, host, rail).queues
    inner = next(thing for thing in queues if "10:" in thing.text and "tbf" in thing.text)
    remove(kernel, host, rail, inner)
    assert machine.queues("rail0") == {"htb 1: root", "htb 1:1 root", "htb 1:10 1:1", "clsact ffff: ingress"}
    for _ in range(2):
        for thing in reversed(queues):
            remove(kernel, host, rail, thing)
        assert machine.queues("rail0") == set()
    for thing in queues:
        replay(kernel, host, rail, thing)
    for thing in queues:
        remove(kernel, host, rail, thing)
    assert machine.queues("rail0") == set()


def test_a_queue_whose_parent_is_not_there_is_refused(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _shape(machine)
    queues = capture(kernel, host, rail).queues
    for thing in reversed(queues):
        remove(kernel, host, rail, thing)
    (inner,) = (thing for thing in queues if "tbf" in thing.text)
    _refused({errno.ENOENT}, lambda: replay(kernel, host, rail, inner))


def test_addresses_that_a_link_listens_to_are_lost_with_a_move_and_can_be_replayed(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    machine.set("rail0", up=True)
    machine.add_address("rail0", "10.0.0.1/24")
    machine.add_address("rail0", "fd00::1/64")
    macs = {"02:11:22:33:44:55", "01:1b:19:00:00:00"}
    for mac in macs:
        machine.listen("rail0", mac)
    state = capture(kernel, host, rail)
    assert {thing.text.split()[1] for thing in state.forwarding} == macs
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0", as_ifindex=rail)
    assert machine.listens("rdma0", POD) == set()
    kernel.move_link(pod, rail, host, "rail0", as_ifindex=rail)
    pod.close()
    for _ in range(2):
        for thing in state.forwarding:
            replay(kernel, host, rail, thing)
        assert machine.listens("rail0") == macs
    for _ in range(2):
        for thing in state.forwarding:
            remove(kernel, host, rail, thing)
        assert machine.listens("rail0") == set()


def test_sizes_are_set_and_told_and_outlive_a_move(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    before = tuning_of(capture(kernel, host, rail).tuning)
    name, value = next((name, value) for name, value in before.items() if name.startswith("channels "))
    changed = value + 1 if value == 1 else value - 1
    apply(kernel, host, rail, SetTuning(sizes=((name, changed),)))
    assert tuning_of(capture(kernel, host, rail).tuning) == before | {name: changed}
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0", as_ifindex=rail)
    assert tuning_of(capture(kernel, pod, rail).tuning)[name] == changed
    apply(kernel, pod, rail, SetTuning(sizes=((name, value),)))
    assert tuning_of(capture(kernel, pod, rail).tuning) == before
    pod.close()


def test_what_a_driver_does_not_have_is_refused(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    no_such = (SetTuning(sizes=(("ring rx-jumbo", 64),)), SetPrivateFlags(flags=(("no-such-flag", True),)))
    for op in no_such:
        _refused({errno.EOPNOTSUPP, errno.EINVAL}, lambda op=op: apply(kernel, host, rail, op))  # type: ignore[misc]  # mypy cannot see the default's type
        _refused({errno.ENODEV}, lambda op=op: apply(kernel, host, 4711, op))  # type: ignore[misc]  # as above


def test_channels_of_a_link_are_told(machine: Machine, rail: int) -> None:
    told = capture(machine.kernel, machine.kernel.host, rail).tuning.splitlines()
    assert [line for line in told if line.startswith("channels ")]


def test_sysctls_are_lost_with_a_move_both_ways(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    changed = {"ipv4/conf/rp_filter": "2", "ipv4/neigh/base_reachable_time_ms": "40000", "ipv6/conf/accept_ra": "2"}
    usual = {name: machine.sysctl("rail0", name) for name in changed}
    set_sysctls(kernel, host, rail, tuple(changed.items()))
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0", as_ifindex=rail)
    assert {name: machine.sysctl("rdma0", name, POD) for name in changed} == usual
    set_sysctls(kernel, pod, rail, tuple(changed.items()))
    assert {name: machine.sysctl("rdma0", name, POD) for name in changed} == changed
    kernel.move_link(pod, rail, host, "rail0", as_ifindex=rail)
    assert {name: machine.sysctl("rail0", name) for name in changed} == usual
    pod.close()


def test_the_mtu_of_ipv6_follows_that_of_the_link(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    set_sysctls(kernel, host, rail, (("ipv6/conf/mtu", "1300"),))
    assert machine.sysctl("rail0", "ipv6/conf/mtu") == "1300"
    set_link(kernel, host, rail, mtu=1500)
    assert machine.sysctl("rail0", "ipv6/conf/mtu") == "1300"
    set_link(kernel, host, rail, mtu=1400)
    assert machine.sysctl("rail0", "ipv6/conf/mtu") == "1400"
    set_sysctls(kernel, host, rail, (("ipv6/conf/mtu", "1300"),))
    set_link(kernel, host, rail, up=True)
    wait_until(lambda: machine.sysctl("rail0", "ipv6/conf/mtu") == "1400", "what comes with the carrier")


def test_a_secret_of_stable_addresses_is_told_where_there_is_one_and_changes_their_mode(
    machine: Machine, rail: int
) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    assert STABLE_SECRET not in sysctls_of(capture(kernel, host, rail).sysctls)
    _refused({errno.EINVAL}, lambda: set_settings(kernel, host, rail, (("addr_gen_mode", 2),)))
    secret = "2001:0db8:0000:0000:0000:0000:0000:0001"
    set_sysctls(kernel, host, rail, ((STABLE_SECRET, secret),))
    state = capture(kernel, host, rail)
    assert (sysctls_of(state.sysctls)[STABLE_SECRET], dict(state.settings)["addr_gen_mode"]) == (secret, 2)
    set_settings(kernel, host, rail, (("addr_gen_mode", 0),))
    set_settings(kernel, host, rail, (("addr_gen_mode", 2),))


def test_without_address_generation_no_address_appears(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    set_settings(kernel, host, rail, (("addr_gen_mode", 1),))
    set_link(kernel, host, rail, up=True)
    assert machine.see()[rail].addresses == frozenset()


def test_a_link_that_goes_up_gets_its_connected_routes_and_a_link_local_address(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    add_address(kernel, host, rail, ip_interface("10.0.0.1/24"))
    assert machine.see()[rail].routes == frozenset()
    set_link(kernel, host, rail, up=True)
    up = replace(
        _bare("rail0"),
        up=True,
        addresses=frozenset({"10.0.0.1/24", LINK_LOCAL}),
        routes=frozenset({"10.0.0.0/24 src 10.0.0.1", LINK_LOCAL_ROUTE}),
    )
    _eventually(machine, rail, up)
    captured = capture(kernel, host, rail)
    assert [thing.kernel_made for thing in captured.addresses] == [False, True]
    assert {thing.kernel_made for thing in captured.routes if "fe80" in thing.text} == {True}
    assert {thing.kernel_made for thing in captured.routes if "fe80" not in thing.text} == {False}
    set_link(kernel, host, rail, up=False)
    _eventually(machine, rail, replace(_bare("rail0"), addresses=frozenset({"10.0.0.1/24"})))


def test_addresses_are_added_once(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    for text in ("10.0.0.1/24", "10.0.0.2/24", "10.1.0.1/32", "fd00::1/64"):
        add_address(kernel, host, rail, ip_interface(text))
        _refused({errno.EEXIST}, lambda text=text: add_address(kernel, host, rail, ip_interface(text)))  # type: ignore[misc]  # mypy cannot see the default's type
    expected = {"10.0.0.1/24", "10.0.0.2/24 secondary", "10.1.0.1/32", "fd00::1/64"}
    assert machine.see()[rail].addresses == expected


def _configure(machine: Machine) -> None:
    machine.set("rail0", up=True)
    for address in ("10.0.0.1/24", "10.0.0.2/24", "10.1.0.1/24", "fd00::1/64"):
        machine.add_address("rail0", address)
    for route in (
        "10.5.0.0/16 via 10.0.0.9 metric 5",
        "10.5.0.0/16 via 10.0.0.8 metric 6",
        "10.6.0.0/16 src 10.0.0.2 table 100",
        "10.7.0.0/16 via 172.16.0.1 onlink",
        "fd05::/64 via fd00::9 metric 7",
    ):
        machine.add_route("rail0", route)
    machine.add_neighbour("rail0", "10.0.0.9", OTHER_MAC)
    machine.add_neighbour("rail0", "fd00::9", OTHER_MAC)


def _replay(machine: Machine, ifindex: int, state: LinkState) -> None:
    for thing in (*state.addresses, *state.neighbours, *state.routes):
        replay(machine.kernel, machine.kernel.host, ifindex, thing)


def test_what_was_captured_can_be_replayed_after_a_move(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    expected = machine.see()[rail]
    assert len(expected.routes) >= 8
    state = capture(kernel, host, rail)
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0")
    kernel.move_link(pod, rail, host, "rail0", as_ifindex=rail)
    pod.close()
    assert machine.see()[rail] == _bare("rail0")
    set_link(kernel, host, rail, up=True)
    _replay(machine, rail, state)
    _eventually(machine, rail, expected)
    again = capture(kernel, host, rail)
    for old, new in ((state.addresses, again.addresses), (state.routes, again.routes)):
        assert {thing.text for thing in old} == {thing.text for thing in new}
    _replay(machine, rail, state)
    _eventually(machine, rail, expected)


def test_what_was_captured_can_be_replayed_on_a_link_of_another_number(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    expected = machine.see()[rail]
    state = capture(kernel, host, rail)
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(host, rail, pod, "rdma0")
    kernel.move_link(pod, rail, host, "rail0", as_ifindex=4711)
    pod.close()
    set_link(kernel, host, 4711, up=True)
    _replay(machine, 4711, state)
    _eventually(machine, 4711, expected)


def test_what_was_captured_can_be_removed_and_removed_again(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    state = capture(kernel, host, rail)
    for _ in range(2):
        for thing in (*state.routes, *state.neighbours, *state.addresses):
            remove(kernel, host, rail, thing)
    _eventually(machine, rail, replace(_bare("rail0"), up=True))


def test_the_same_route_over_another_link_does_not_count_as_restored(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    other = machine.add_link("rail1", OTHER_MAC)
    for name in ("rail0", "rail1"):
        machine.set(name, up=True)
    wait_until(lambda: all(machine.see()[it].routes == {LINK_LOCAL_ROUTE} for it in (rail, other)), "link-local")
    (route,) = capture(kernel, host, rail).routes
    remove(kernel, host, rail, route)
    assert machine.see()[other].routes == {LINK_LOCAL_ROUTE}
    replay(kernel, host, rail, route)
    assert machine.see()[rail].routes == {LINK_LOCAL_ROUTE}


def test_a_route_that_cannot_be_is_refused(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    gateway = next(thing for thing in capture(kernel, host, rail).routes if "10.5.0.0/16" in thing.text)
    set_link(kernel, host, rail, up=False)
    _refused({errno.ENETDOWN, errno.ENETUNREACH}, lambda: replay(kernel, host, rail, gateway))


@pytest.fixture
def in_pod(machine: Machine, rail: int) -> Namespace:
    """The pod, with the link up in it, with two networks."""
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=rail)
    addresses = [ip_interface("10.0.0.2/24"), ip_interface("fd00::2/64")]
    configure(kernel, pod, rail, mtu=None, addresses=addresses)
    wait_until(lambda: len(machine.see(POD)[rail].routes) == 3, "connected routes")
    return pod


def _route(destination: str, **fields: Any) -> AddRoute:
    for key in ("gateway", "source"):
        if key in fields:
            fields[key] = ip_address(fields[key])
    return AddRoute(route=RouteConfig(destination=ip_network(destination), **fields))


def test_routes_of_a_request_are_added_with_all_they_say(machine: Machine, rail: int, in_pod: Namespace) -> None:
    before = machine.see(POD)[rail].routes
    hops = (NextHop(gateway=ip_address("10.0.0.1")), NextHop(gateway=ip_address("10.0.0.3"), weight=7))
    six = (NextHop(gateway=ip_address("fd00::1")), NextHop(gateway=ip_address("fd00::3"), weight=7))
    ops = (
        _route("10.9.0.0/16", gateway="10.0.0.1", metric=7, source="10.0.0.2", mtu=1400, advmss=1300),
        _route("0.0.0.0/0", gateway="10.0.0.1", table=4711),
        _route("10.8.0.0/16", scope=SCOPE_LINK, table=100),
        _route("10.7.0.1/32", gateway="172.16.0.1", onlink=True),
        _route("10.6.0.0/16", multipath=hops),
        _route("fd09::/32", gateway="fd00::1", source="fd00::2", mtu=1400),
        _route("::/0", gateway="fd00::1", metric=9),
        _route("fd08::/32", scope=SCOPE_LINK, table=100),
        _route("fd06::/32", multipath=six),
    )
    apply(machine.kernel, in_pod, rail, *ops)
    assert machine.see(POD)[rail].routes - before == {
        "10.9.0.0/16 via 10.0.0.1 src 10.0.0.2 metric 7 mtu 1400 advmss 1300",
        "0.0.0.0/0 via 10.0.0.1 table 4711",
        "10.8.0.0/16 table 100",
        "10.7.0.1/32 via 172.16.0.1 onlink",
        "10.6.0.0/16 nexthop 10.0.0.1 weight 1 nexthop 10.0.0.3 weight 7",
        "fd09::/32 via fd00::1 src fd00::2 metric 1024 mtu 1400",
        "::/0 via fd00::1 metric 9",
        "fd08::/32 metric 1024 table 100",
        "fd06::/32 metric 1024 nexthop fd00::1 weight 1 nexthop fd00::3 weight 7",
    }


def test_a_route_of_a_request_that_cannot_be_is_refused(machine: Machine, rail: int, in_pod: Namespace) -> None:
    kernel, seen = machine.kernel, machine.see(POD)
    apply(kernel, in_pod, rail, _route("10.9.0.0/16", gateway="10.0.0.1"))
    again = _route("10.9.0.0/16", gateway="10.0.0.3")
    _refused({errno.EEXIST}, lambda: apply(kernel, in_pod, rail, again))
    unreached = _route("10.8.0.0/16", gateway="172.16.0.1")
    _refused({errno.ENETUNREACH}, lambda: apply(kernel, in_pod, rail, unreached))
    foreign = _route("10.8.0.0/16", gateway="10.0.0.1", source="10.1.1.1")
    _refused({errno.EINVAL}, lambda: apply(kernel, in_pod, rail, foreign))
    added = {"10.9.0.0/16 via 10.0.0.1"}
    assert machine.see(POD)[rail].routes == seen[rail].routes | added


def test_a_neighbour_of_a_request_is_permanent_and_replaces_another(
    machine: Machine, rail: int, in_pod: Namespace
) -> None:
    for mac in (MAC, OTHER_MAC):
        for text in ("10.0.0.9", "fd00::9"):
            neighbour = NeighbourConfig(destination=ip_address(text), mac=mac)
            apply(machine.kernel, in_pod, rail, AddNeighbour(neighbour=neighbour))
    assert machine.see(POD)[rail].neighbours == {f"10.0.0.9 {OTHER_MAC}", f"fd00::9 {OTHER_MAC}"}


RULES = (
    RoutingRule(version=4, priority=100, table=100),
    RoutingRule(version=4, priority=100, table=100, source=IPv4Network("10.0.0.2/32")),
    RoutingRule(version=4, priority=100, table=100, source=IPv4Network("10.0.0.0/8"), invert=True),
    RoutingRule(version=4, priority=100, table=100, source=IPv4Network("10.0.0.2/32"), fwmark=1),
    RoutingRule(version=4, priority=101, table=4711, fwmark=0x10, fwmask=0xF0, iif="eth0", oif="rdma0"),
    RoutingRule(version=4, priority=102, table=254, suppress_prefix_length=0),
    RoutingRule(
        version=6, priority=100, table=100, source=IPv6Network("fd00::/64"), destination=IPv6Network("fd09::/32")
    ),
    RoutingRule(version=6, priority=0, table=100, fwmark=1),
)


def test_rules_are_added_to_the_namespace_and_exactly_these_are_removed(
    machine: Machine, rail: int, in_pod: Namespace
) -> None:
    kernel = machine.kernel
    ops = tuple(AddRule(rule=rule) for rule in RULES)
    apply(kernel, in_pod, rail, *ops)
    visible = {f"{rule.version} {rule}" for rule in RULES if rule.priority}
    assert machine.rules() == visible
    _refused({errno.EEXIST}, lambda: apply(kernel, in_pod, rail, ops[1]))
    for _ in range(2):  # the second time there is nothing left
        apply(kernel, in_pod, rail, *inverses_of(ops))
        assert machine.rules() == frozenset()
    assert machine.rules(HOST) == frozenset()


def test_some_of_several_rules_are_removed_and_the_others_stay(machine: Machine, rail: int, in_pod: Namespace) -> None:
    kernel = machine.kernel
    apply(kernel, in_pod, rail, *(AddRule(rule=rule) for rule in RULES[:4]))
    apply(kernel, in_pod, rail, *inverses_of([AddRule(rule=RULES[3]), AddRule(rule=RULES[1])]))
    assert machine.rules() == {f"4 {RULES[0]}", f"4 {RULES[2]}"}


def test_routes_that_lead_nowhere_are_added_and_removed(machine: Machine, rail: int, in_pod: Namespace) -> None:
    kernel = machine.kernel
    routes = [
        RouteConfig(destination=IPv4Network("10.9.0.0/16"), type=RouteType.BLACKHOLE),
        RouteConfig(destination=IPv4Network("10.8.0.0/16"), type=RouteType.PROHIBIT, table=100, metric=5),
        RouteConfig(destination=IPv6Network("fd09::/32"), type=RouteType.UNREACHABLE, metric=5),
    ]
    ops = [AddRejectRoute(route=route) for route in routes]
    before = machine.see(POD)[rail]
    apply(kernel, in_pod, rail, *ops)
    assert machine.rejects() == {str(route) for route in routes}
    assert machine.see(POD)[rail] == before
    _refused({errno.EEXIST}, lambda: apply(kernel, in_pod, rail, ops[0]))
    for _ in range(2):
        apply(kernel, in_pod, rail, *inverses_of(ops))
        assert machine.rejects() == frozenset()


def test_a_link_is_put_into_a_vrf_that_is_made_and_removed_with_its_last_link(
    machine: Machine, rail: int, in_pod: Namespace
) -> None:
    kernel, red = machine.kernel, VrfConfig(name="red", table=100)
    second = machine.add_link("rail1", OTHER_MAC, POD)
    try:
        apply(kernel, in_pod, rail, JoinVrf(vrf=red))
    except KernelError as error:
        assert error.errno == errno.EOPNOTSUPP
        pytest.skip("this kernel has no VRFs")
    apply(kernel, in_pod, second, JoinVrf(vrf=red))
    (vrf,) = (link for link in kernel.links(in_pod) if link.name == "red")
    masters = {link.ifindex: link.master for link in kernel.links(in_pod)}
    assert (vrf.kind, vrf.up, masters[rail], masters[second]) == ("vrf", True, vrf.ifindex, vrf.ifindex)
    _refused({errno.EEXIST}, lambda: apply(kernel, in_pod, rail, JoinVrf(vrf=VrfConfig(name="red", table=101))))
    _refused({errno.EEXIST}, lambda: apply(kernel, in_pod, rail, JoinVrf(vrf=VrfConfig(name="rail1", table=101))))
    apply(kernel, in_pod, rail, DropVrf(vrf=red))
    assert any(link.name == "red" for link in kernel.links(in_pod)), "another link is in it"
    kernel.move_link(in_pod, rail, kernel.host, "rail0", as_ifindex=rail)
    assert {link.ifindex: link.master for link in kernel.links(kernel.host)}[rail] == 0
    for _ in range(2):
        apply(kernel, in_pod, second, DropVrf(vrf=red))
        assert not any(link.name == "red" for link in kernel.links(in_pod))


def test_a_vrf_of_somebody_else_is_joined_and_stays(linux: LinuxMachine) -> None:
    kernel, red = linux.kernel, VrfConfig(name="red", table=100)
    rail = linux.add_link("rail0", MAC, POD)
    try:
        linux.ip(POD, "link add red type vrf table 100")
    except RuntimeError:
        pytest.skip("this kernel has no VRFs")
    pod = kernel.open_namespace(linux.pod_path)
    apply(kernel, pod, rail, JoinVrf(vrf=red), DropVrf(vrf=red))
    assert any(link.name == "red" for link in kernel.links(pod))


def test_programs_may_be_detached_where_there_are_none(machine: Machine, rail: int) -> None:
    apply(machine.kernel, machine.kernel.host, rail, DetachTcx())
    assert machine.see()[rail] == _bare("rail0")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ipv4/conf/forwarding", "1"),
        ("ipv6/conf/forwarding", "1"),
        ("ipv4/conf/arp_ignore", "8"),
        ("ipv4/conf/arp_announce", "2"),
        ("ipv6/conf/disable_ipv6", "1"),
    ],
)
def test_a_sysctl_of_a_request_is_set_in_the_pod_and_stays_there(
    machine: Machine, rail: int, in_pod: Namespace, key: str, value: str
) -> None:
    kernel, other = machine.kernel, machine.add_link("rail1", OTHER_MAC)
    assert other
    apply(kernel, in_pod, rail, SetSysctl(key=key, value=value))
    assert machine.sysctl("rdma0", key, POD) == value
    kernel.move_link(in_pod, rail, kernel.host, "rail0", as_ifindex=rail)
    assert machine.sysctl("rail0", key) == machine.sysctl("rail1", key), "as the namespace gives it to every new link"


def test_what_a_request_adds_to_a_link_does_not_come_home_with_it(
    machine: Machine, rail: int, in_pod: Namespace
) -> None:
    kernel = machine.kernel
    neighbour = NeighbourConfig(destination=ip_address("10.0.0.9"), mac=OTHER_MAC)
    apply(kernel, in_pod, rail, _route("10.9.0.0/16", gateway="10.0.0.1"), AddNeighbour(neighbour=neighbour))
    kernel.move_link(in_pod, rail, kernel.host, "rail0", as_ifindex=rail)
    assert machine.see()[rail] == _bare("rail0")


def test_links_of_default_routes_are_known(machine: Machine, rail: int) -> None:
    assert rail not in machine.kernel.host_use().default_route_links
    machine.set("rail0", up=True)
    machine.add_address("rail0", "10.0.0.1/24")
    machine.add_route("rail0", "0.0.0.0/0 via 10.0.0.9")
    assert machine.kernel.host_use().default_route_links == {rail}
    assert machine.kernel.host_use().routing == Routing()


def test_default_routes_in_other_tables_are_known_with_what_leads_to_them(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    machine.set("rail0", up=True)
    machine.add_address("rail0", "10.0.0.1/24")
    machine.add_route("rail0", "0.0.0.0/0 via 10.0.0.9 table 1000")
    apply(kernel, kernel.host, rail, AddRule(rule=_ruled("10.0.0.1/32", 1000)))
    for use in (kernel.host_use(), kernel.survey({rail}).use):
        assert use.default_route_links == set()
        (route,) = use.routing.routes[rail]
        assert (str(route.destination), str(route.gateway), route.table) == ("0.0.0.0/0", "10.0.0.9", 1000)
        assert _ruled("10.0.0.1/32", 1000) in {it.rule for it in use.routing.rules}
        assert ip_interface("10.0.0.1/24") in use.routing.addresses[rail]


def _ruled(source: str, table: int) -> RoutingRule:
    return RoutingRule(version=4, priority=100, table=table, source=ip_network(source))


def test_the_addresses_of_links_are_known(machine: Machine, rail: int) -> None:
    assert rail not in machine.kernel.host_use().addresses
    machine.set("rail0", up=True)
    machine.add_address("rail0", "10.0.0.1/24")
    machine.add_address("rail0", "fd00::1/64")
    wait_until(lambda: LINK_LOCAL_ROUTE in machine.see()[rail].routes, "link-local")
    seen = {address.split("/")[0] for address in machine.see()[rail].addresses}
    assert {str(it) for it in machine.kernel.host_use().addresses[rail]} == seen
    assert seen > {"10.0.0.1", "fd00::1"}
    for use in (machine.kernel.host_use(), machine.kernel.survey({rail}).use):
        assert set(use.networks[rail]) == machine.see()[rail].addresses


def test_a_survey_tells_the_use_of_some_links_and_of_what_is_tied_to_them(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    other = machine.add_link("rail1", OTHER_MAC)
    machine.add_route("rail0", "0.0.0.0/0 via 10.0.0.9")
    machine.add_route("rail0", "0.0.0.0/0 via 10.0.0.9 table 100")
    wait_until(lambda: LINK_LOCAL_ROUTE in machine.see()[rail].routes, "link-local")
    survey, links = kernel.survey({rail, other, 4711}), {link.ifindex: link for link in kernel.links(host)}
    assert {link.ifindex: link for link in survey.use.links if link.ifindex in {rail, other}} == survey.links
    assert survey.links == {number: links[number] for number in (rail, other)}
    assert survey.use.default_route_links == kernel.host_use().default_route_links == {rail}
    assert survey.use.routing == kernel.host_use().routing != Routing()
    assert kernel.survey(()).links == {}


def test_several_links_are_captured_as_one_is(machine: Machine, rail: int) -> None:
    kernel, host = machine.kernel, machine.kernel.host
    _configure(machine)
    other = machine.add_link("rail1", OTHER_MAC)
    wait_until(lambda: LINK_LOCAL_ROUTE in machine.see()[rail].routes, "link-local")
    several = kernel.capture(kernel.host, {rail, other, 4711}, unreturnable=True)
    assert {number: _told(link) for number, link in several.items()} == {
        number: _told(capture(kernel, host, number)) for number in (rail, other)
    }
    assert kernel.capture(kernel.host, (), unreturnable=True) == {}


def _told(state: LinkState) -> LinkState:
    """Without the bytes, which hold counters."""
    addresses, routes, neighbours = (
        tuple(replace(it, raw=b"") for it in things) for things in (state.addresses, state.routes, state.neighbours)
    )
    return replace(state, addresses=addresses, routes=routes, neighbours=neighbours)


def test_a_namespace_is_the_same_however_often_it_is_opened(machine: Machine) -> None:
    one, two = (machine.kernel.open_namespace(machine.pod_path) for _ in range(2))
    assert one.identity == two.identity
    assert one.identity.cookie != machine.kernel.host.identity.cookie
    assert one.identity.boot_id == machine.kernel.host.identity.boot_id
    assert (one.is_host, machine.kernel.host.is_host) == (False, True)
    for namespace in (one, two, one):
        namespace.close()


def test_a_namespace_that_rests_is_used_again(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    before = kernel.links(pod)
    for _ in range(2):
        pod.rest()
        pod.rest()
        assert kernel.links(pod) == before
    kernel.move_link(kernel.host, rail, pod, "rdma0")
    pod.rest()
    machine.remove_pod()
    kernel.move_link(pod, rail, kernel.host, "rail0", as_ifindex=rail)
    assert machine.see()[rail].mac == MAC
    pod.close()
    pod.rest()


def test_an_open_namespace_lives_without_its_path(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0")
    machine.remove_pod()
    _refused({errno.ENOENT}, lambda: kernel.open_namespace(machine.pod_path))
    kernel.move_link(pod, rail, kernel.host, "rail0", as_ifindex=rail)
    assert machine.see()[rail].mac == MAC
    pod.close()


def test_a_virtual_link_dies_with_its_namespace(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0")
    machine.remove_pod()
    pod.close()
    assert rail not in machine.see()


def test_a_device_of_a_bus_is_there_or_not(machine: Machine) -> None:
    there = machine.bus_device()
    kernel = machine.kernel
    assert kernel.has_bus_device(there)
    assert not kernel.has_bus_device(f"{there}00")
    assert not kernel.has_bus_device("pci/ffff:ff:1f.7")


def test_a_virtual_link_is_known_by_what_it_hangs_on(machine: Machine, rail: int) -> None:
    kernel = machine.kernel
    wanted = capture(kernel, kernel.host, rail)
    assert wanted.peer
    pod = kernel.open_namespace(machine.pod_path)
    kernel.move_link(kernel.host, rail, pod, "rdma0", as_ifindex=77)
    assert kernel.hangs_on(pod, 77, wanted)
    assert kernel.hangs_on(pod, 77, replace(wanted, peer=0)), "an older journal names no peer"
    assert not kernel.hangs_on(pod, 77, replace(wanted, peer=wanted.peer + 4711))
    machine.replace_in_pod("rdma0")
    assert not kernel.hangs_on(pod, 77, wanted)
    _refused({errno.ENODEV}, lambda: kernel.hangs_on(pod, 4711, wanted))
    pod.close()


def test_a_namespace_that_is_held_open_knows_whether_its_path_still_leads_to_it(machine: Machine) -> None:
    kernel = machine.kernel
    pod = kernel.open_namespace(machine.pod_path)
    assert (pod.is_at_its_path, kernel.host.is_at_its_path) == (True, True)
    machine.remove_pod()
    assert not pod.is_at_its_path
    pod.close()


def test_a_closed_namespace_is_not_entered(machine: Machine) -> None:
    pod: Namespace = machine.kernel.open_namespace(machine.pod_path)
    pod.close()
    _refused({errno.EBADF}, lambda: machine.kernel.links(pod))


def test_a_path_that_no_file_can_have_is_no_namespace(machine: Machine) -> None:
    _refused({errno.ENOENT}, lambda: machine.kernel.open_namespace("/run/netns/\0"))


def test_a_kernel_without_rdma_has_no_devices_and_says_so(machine: Machine) -> None:
    kernel = machine.kernel
    if kernel.rdma_netns() is not RdmaNetns.NONE:
        pytest.skip("this kernel has an RDMA subsystem; tests/lab holds it to its answers")
    pod = kernel.open_namespace(machine.pod_path)
    assert kernel.rdma_devices(kernel.host) == kernel.rdma_devices(pod) == ()
    ports = {("mlx5_0", 1)}
    assert kernel.gid_tables(kernel.host, ports, 32) == kernel.gid_tables(pod, ports, 32) == {}
    _refused({errno.EPROTONOSUPPORT}, lambda: kernel.move_rdma(kernel.host, 1, pod))
    _refused({errno.EPROTONOSUPPORT}, lambda: rename_rdma(kernel, kernel.host, 1, "mine"))
    _refused({errno.EPROTONOSUPPORT}, lambda: kernel.can_move_rdma(1, pod))
    _refused({errno.EPROTONOSUPPORT}, lambda: kernel.char_device(pod, 1, CharKind.UVERBS, None))
    pod.close()


def test_asking_whether_a_device_could_move_to_where_it_is_is_refused(machine: Machine) -> None:
    _refused({errno.EINVAL}, lambda: machine.kernel.can_move_rdma(1, machine.kernel.host))


def test_one_link_is_asked_for_by_its_number(machine: Machine) -> None:
    rail, host = machine.add_link("rail0", MAC), machine.kernel.host
    (listed,) = (link for link in machine.kernel.links(host) if link.ifindex == rail)
    assert machine.kernel.link(host, rail) == listed
    assert machine.kernel.link(host, 4711) is None
