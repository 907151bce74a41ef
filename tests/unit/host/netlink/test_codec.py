"""Operations on links of the real kernel go to it together where they go the same way."""

import errno
from collections.abc import Callable, Sequence
from ipaddress import ip_interface

import pytest

from nri_rdma.attach.ops import AddAddress, AddAltName, DetachXdp, DropAltName, Op, SetLink, SetSettings, SetSysctl
from nri_rdma.host.netlink.namespaces.namespace import HeldNamespace
from nri_rdma.host.netlink.sockets.route_socket import REQUESTS_MAX, RouteSocket
from tests.contract.machines import LinuxMachine

pytestmark = pytest.mark.root
SYSCTLS = (
    SetSysctl(key="ipv4/conf/rp_filter", value="2"),
    SetSysctl(key="ipv6/conf/accept_ra", value="0"),
    SetSysctl(key="ipv4/conf/arp_ignore", value="1"),
)


class Ways:
    """What went to the kernel: datagrams of rtnetlink, and entries into the namespace."""

    def __init__(self) -> None:
        self.datagrams = self.entries = 0


@pytest.fixture
def rail(linux: LinuxMachine) -> int:
    return linux.add_link("rail0", "02:11:00:00:00:01")


@pytest.fixture
def ways(linux: LinuxMachine, rail: int, monkeypatch: pytest.MonkeyPatch) -> Ways:
    """Counts from here on."""
    counted, send, run = Ways(), RouteSocket._send, HeldNamespace.run

    def counting_send(self: RouteSocket, operation: str, datagram: bytes) -> None:
        counted.datagrams += 1
        send(self, operation, datagram)

    def counting_run(self: HeldNamespace, work: Callable[[], object]) -> object:
        counted.entries += 1
        return run(self, work)

    monkeypatch.setattr(RouteSocket, "_send", counting_send)
    monkeypatch.setattr(HeldNamespace, "run", counting_run)
    return counted


def _apply(linux: LinuxMachine, rail: int, ops: Sequence[Op]) -> list[tuple[Op, int]]:
    return [(it.op, it.error.errno) for it in linux.kernel.apply(linux.kernel.host, rail, ops)]


def test_a_netdev_is_configured_with_one_datagram(linux: LinuxMachine, rail: int, ways: Ways) -> None:
    addresses = [AddAddress(address=ip_interface(text)) for text in ("10.0.0.1/24", "fd00::1/64")]
    assert _apply(linux, rail, [SetLink(mtu=1400), *addresses, SetLink(up=True)]) == []
    assert (ways.datagrams, ways.entries) == (1, 0)
    assert (linux.see()[rail].mtu, linux.see()[rail].up) == (1400, True)


def test_sysctls_in_a_row_are_set_with_one_entry_into_the_namespace(linux: LinuxMachine, rail: int, ways: Ways) -> None:
    assert _apply(linux, rail, SYSCTLS) == []
    assert (ways.datagrams, ways.entries) == (0, 1)
    assert [linux.sysctl("rail0", op.key) for op in SYSCTLS] == [op.value for op in SYSCTLS]


def test_operations_that_go_another_way_keep_their_place_in_the_order(
    linux: LinuxMachine, rail: int, ways: Ways
) -> None:
    mtu = SetSysctl(key="ipv6/conf/mtu", value="1300")
    assert _apply(linux, rail, [SetLink(mtu=1400), mtu, SetLink(mtu=1450), mtu]) == []
    assert (ways.datagrams, ways.entries) == (2, 2)
    assert linux.sysctl("rail0", "ipv6/conf/mtu") == "1300"  # a new MTU of the link sets it: this came last


def test_a_refusal_keeps_nothing_that_goes_another_way_from_being_tried(linux: LinuxMachine, rail: int) -> None:
    ops = (
        SetLink(mtu=10),
        SYSCTLS[0],
        SetSysctl(key="ipv4/conf/no_such_thing", value="1"),
        SYSCTLS[1],
        SetLink(alias="left"),
    )
    assert _apply(linux, rail, ops) == [(ops[0], errno.EINVAL), (ops[2], errno.ENOENT)]
    assert [linux.sysctl("rail0", op.key) for op in SYSCTLS[:2]] == [op.value for op in SYSCTLS[:2]]
    assert linux.see()[rail].alias == "left"


def test_more_operations_than_fit_in_one_datagram_are_all_tried_and_told_apart(
    linux: LinuxMachine, rail: int, ways: Ways
) -> None:
    addresses = [AddAddress(address=ip_interface(f"10.0.{number}.1/24")) for number in range(REQUESTS_MAX + 3)]
    assert _apply(linux, rail, [*addresses, addresses[1], SetLink(mtu=10), addresses[-1]]) == [
        (addresses[1], errno.EEXIST),
        (SetLink(mtu=10), errno.EINVAL),
        (addresses[-1], errno.EEXIST),
    ]
    assert ways.datagrams == 2
    assert len(linux.see()[rail].addresses) == REQUESTS_MAX + 3


def test_the_same_operation_is_refused_as_often_as_it_is_tried(linux: LinuxMachine, rail: int) -> None:
    drop = DropAltName(name="enp1")
    refused = _apply(linux, rail, [drop, AddAltName(name="enp1"), drop, drop])
    assert [op for op, _ in refused] == [drop, drop]


def test_an_operation_that_is_several_requests_is_refused_once(linux: LinuxMachine, rail: int) -> None:
    assert _apply(linux, 4711, [DetachXdp(), SetSettings(settings=(("group", 1),))]) == [
        (DetachXdp(), errno.ENODEV),
        (SetSettings(settings=(("group", 1),)), errno.ENODEV),
    ]


def test_where_the_namespace_is_closed_every_operation_is_refused_and_nothing_raised(linux: LinuxMachine) -> None:
    pod = linux.kernel.open_namespace(linux.pod_path)
    pod.close()
    ops = (SetLink(up=True), SYSCTLS[0], SetLink(up=False))
    refused = linux.kernel.apply(pod, 1, ops)
    assert [(it.op, it.error.errno) for it in refused] == [(op, errno.EBADF) for op in ops]
