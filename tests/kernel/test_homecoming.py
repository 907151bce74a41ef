"""On the real kernel: whatever fails when, and whatever the pod did, the host is as before; as `ip -j -d` sees it."""

import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import KINDS, MAC, RICH, Attach, add_veth, configure, make_rich
from tests.rig import hostlook, sysctls
from tests.rig.deadline import wait_until
from tests.rig.linkops import set_link
from tests.unit.attach.meddlings import MEDDLINGS, Meddling

pytestmark = pytest.mark.root


@pytest.fixture(params=KINDS)
def rich(request: pytest.FixtureRequest, linux: LinuxMachine) -> LinuxMachine:
    """A host with a link that has everything, and a bystander; the pod has a link of the same number."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    make_rich(linux, request.param)
    return linux


def test_a_rich_link_goes_and_comes_home(rich: LinuxMachine) -> None:
    attach = Attach(rich, "rail0")
    attach.do(attach.kernel)
    (move,) = attach.record.plan.moves
    in_pod = rich.see(POD)[move.pod_ifindex]
    assert (in_pod.name, in_pod.mac, in_pod.mtu, in_pod.up) == ("rdma0", MAC, 1300, True)
    attach.assert_home()


def test_a_link_that_is_down_comes_home_down(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    linux.ip(HOST, "address add 10.0.0.1/24 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.assert_home()


def test_a_link_without_address_generation_comes_home_without_a_link_local_address(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    linux.ip(HOST, "link set rail0 addrgenmode none")
    linux.ip(HOST, "link set rail0 up")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.assert_home()
    assert linux.see()[attach.record.plan.moves[0].link.ifindex].addresses == frozenset()


def test_what_the_administrator_had_deleted_stays_deleted(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add 10.0.0.1/24 dev rail0\naddress add fd00::1/64 dev rail0")
    _settle(linux)
    configure(linux, "route delete 10.0.0.0/24 dev rail0\nroute delete fd00::/64 dev rail0")
    configure(linux, "address delete fe80::11:ff:fe00:1/64 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.assert_home()


@pytest.mark.parametrize("act", MEDDLINGS, ids=lambda act: act.__name__)
def test_what_a_pod_did_to_its_link_is_undone(linux: LinuxMachine, act: Meddling) -> None:
    add_veth(linux, "rail0")
    configure(linux, RICH)
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.meddle([act])
    attach.assert_home()


@pytest.mark.parametrize(
    "commands",
    [
        "link set rdma0 mode dormant",
        "link set rdma0 mode dormant\nlink set rdma0 state DORMANT",
        "link set rdma0 broadcast 01:02:03:04:05:06",
        "link set rdma0 trailers off",
        "link set rdma0 dynamic on\nlink set rdma0 arp off\nlink set rdma0 multicast off\nlink set rdma0 promisc on",
        "link set rdma0 gso_max_size 4096 gso_max_segs 3 gro_max_size 4096",
        "link set rdma0 addrgenmode eui64\nlink set rdma0 group 9 txqueuelen 3 alias mine",
    ],
    ids=lambda commands: commands.replace("link set rdma0 ", "").replace("\n", ", "),
)
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_what_a_pod_did_with_ip_to_its_link_leaves_no_mark(linux: LinuxMachine, commands: str, up: bool) -> None:
    add_veth(linux, "rail0")
    if up:
        configure(linux, "link set rail0 up\naddress add 10.0.0.1/24 dev rail0\naddress add fd00::1/64 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    for command in commands.splitlines():
        linux.ip(POD, command)
    attach.assert_home()


def test_an_unusual_link_mode_and_broadcast_address_of_the_host_come_back(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 mode dormant\nlink set rail0 broadcast 01:02:03:04:05:06")
    configure(linux, "link set rail0 trailers off")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    for command in ("mode default", "broadcast ff:ff:ff:ff:ff:ff", "trailers on"):
        linux.ip(POD, f"link set rdma0 {command}")
    attach.assert_home()


def test_an_alias_of_the_greatest_length_comes_back(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    linux.ip(HOST, f"link set rail0 alias {'a' * 255}")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    linux.ip(POD, "link set rdma0 alias mine")
    attach.assert_home()


def test_ipv6_addresses_come_back_in_their_order_and_the_host_sends_from_the_same_one(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    linux.ip(HOST, "link set rail0 up")
    for address in ("fd00::1/64", "fd00::2/64", "fd00:5::1/64"):
        linux.ip(HOST, f"address add {address} dev rail0")

    def seen() -> tuple[list[str], str]:
        (shown,), (route,) = (json.loads(linux.ip(HOST, it)) for it in ("-j -6 address show rail0", to))
        return [it["local"] for it in shown["addr_info"]], route["prefsrc"]

    to = "-j -6 route get fd00::9"
    attach = Attach(linux, "rail0")
    before = seen()
    attach.do(attach.kernel)
    attach.assert_home()
    assert seen() == before


@pytest.mark.parametrize(
    ("address", "to"), [("10.5.0.2/24", "10.8.0.0/16"), ("fd55::2/64", "fd08::/64")], ids=["IPv4", "IPv6"]
)
def test_a_route_whose_source_address_has_left_the_host_does_not_keep_the_link_from_coming_home(
    linux: LinuxMachine, caplog: pytest.LogCaptureFixture, address: str, to: str
) -> None:
    """The address was on another link. All else is restored, and the log tells of the route."""
    _two_links(linux)
    configure(linux, f"address add {address} dev rail1")
    _settle(linux)
    before = hostlook.take(linux.path(HOST))
    configure(linux, f"route add {to} dev rail0 src {address.partition('/')[0]}")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    linux.ip(HOST, f"address delete {address} dev rail1")
    assert attach.undo(attach.kernel) == ()
    (line,) = (it for it in caplog.records if it.levelno == logging.WARNING)
    assert line.getMessage() == "routes are not restored: the host no longer has their source address"
    assert to in str(vars(line)["errors"])
    linux.ip(HOST, f"address add {address} dev rail1")
    assert hostlook.difference(before, hostlook.take_settled(linux.path(HOST))) == []


def test_a_link_with_an_ipv4_route_through_an_ipv6_gateway_goes_and_comes_home(linux: LinuxMachine) -> None:
    """The kernel takes that route only after the one to the gateway."""
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add fd00::1/64 noprefixroute dev rail0")
    configure(linux, "route add fd00::/64 dev rail0\nroute add 10.8.0.0/16 via inet6 fd00::9 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    assert "fd00::9" in linux.ip(POD, "route show 10.8.0.0/16")
    attach.assert_home()


@pytest.mark.parametrize("mode", [0, 2, 4], ids=["any", "generic", "driver"])
def test_xdp_that_a_pod_attached_stays_not_on_the_host(linux: LinuxMachine, mode: int) -> None:
    add_veth(linux, "rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    (move,) = attach.record.plan.moves
    namespace = f"--net={linux.path(POD)}"
    done = subprocess.run(
        ["nsenter", namespace, sys.executable, "-c", ATTACH_XDP, str(move.pod_ifindex), str(mode)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(f"this kernel loads no XDP program (CONFIG_BPF_SYSCALL): {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert "xdp" in json.loads(linux.ip(POD, "-j -d link show rdma0"))[0]
    attach.assert_home()
    assert "xdp" not in json.loads(linux.ip(HOST, "-j -d link show rail0"))[0]


ATTACH_XDP = """
import ctypes, os, socket, struct, sys
ifindex, mode = map(int, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
code = ctypes.create_string_buffer(struct.pack("=BBhiBBhi", 0xB7, 0, 0, 2, 0x95, 0, 0, 0))  # return XDP_PASS
licence = ctypes.create_string_buffer(b"GPL")
load = struct.pack("=IIQQ", 6, 2, ctypes.addressof(code), ctypes.addressof(licence)).ljust(128, bytes(1))
bpf = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine, -1)
fd = libc.syscall(bpf, 5, ctypes.create_string_buffer(load), 128)
if fd < 0:
    print(os.strerror(ctypes.get_errno()), file=sys.stderr)
    sys.exit(77)
xdp = struct.pack("=HHiHHI", 8, 1, fd, 8, 3, mode)
body = struct.pack("=BxHiII", 0, 0, ifindex, 0, 0) + struct.pack("=HH", 4 + len(xdp), 0x8000 | 43) + xdp
route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
route.send(struct.pack("=IHHII", 16 + len(body), 19, 5, 1, 0) + body)
error = -struct.unpack_from("=i", route.recv(65536), 16)[0]
sys.exit(os.strerror(error) if error else 0)
"""


def test_a_link_of_the_same_kind_and_mac_that_the_pod_made_is_not_taken_for_ours(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    (move,) = attach.record.plan.moves
    set_link(attach.kernel, attach.namespace, move.pod_ifindex, up=False)
    set_link(attach.kernel, attach.namespace, move.pod_ifindex, name="mine", mac="02:11:00:00:00:ff")
    linux.ip(POD, f"link add rdma0 address {MAC} type veth peer name decoy")
    attach.assert_home()
    assert {"rdma0", "decoy"} <= {link.name for link in linux.see(POD).values()}


def test_a_name_that_is_taken_on_the_host_is_had_back_when_it_is_free(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    configure(linux, RICH)
    attach = Attach(linux, "rail0")
    ifindex = attach.record.plan.moves[0].link.ifindex
    attach.do(attach.kernel)
    attach.meddle(MEDDLINGS)
    linux.ip(HOST, "link add other type veth peer name rail0")
    (error,) = attach.undo(attach.kernel)
    assert "EEXIST" in str(error)
    home = linux.see()[ifindex]
    assert (home.name, home.mac, home.mtu, home.up) == (f"nrirdma-{ifindex}", MAC, 1400, True)
    linux.ip(HOST, "link delete other")
    attach.assert_home()


def test_a_number_that_is_taken_on_the_host_costs_only_the_number(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add 10.0.0.1/24 dev rail0")
    _settle(linux)
    attach = Attach(linux, "rail0")
    ifindex = attach.record.plan.moves[0].link.ifindex
    before = linux.see()[ifindex]
    attach.do(attach.kernel)
    attach.meddle(MEDDLINGS)
    linux.ip(HOST, f"link add other index {ifindex} type veth peer name other1")
    assert attach.undo(attach.kernel) == ()
    assert attach.undo(attach.kernel) == ()
    assert linux.see()[ifindex].name == "other"
    (home,) = (link for link in linux.see().values() if link.name == "rail0")
    assert home == before


def test_a_name_that_is_taken_in_the_pod_fails_the_attach_and_leaves_nothing(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    attach = Attach(linux, "rail0")
    linux.ip(POD, "link add rdma0 index 99 type veth peer name eth9 index 98")  # after the plan was made
    with pytest.raises(NriRdmaError, match="EEXIST"):
        attach.do(attach.kernel)
    attach.assert_home()


def test_a_virtual_link_that_was_deleted_in_the_pod_is_no_error(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    linux.ip(POD, "link delete rdma0")
    assert attach.undo(attach.kernel) == ()
    assert attach.lost == [("rail0", "it is neither on the host nor in the pod")]


def _peer_on_host(linux: LinuxMachine) -> None:
    linux.ip(HOST, f"link add rail0 index 50 address {MAC} type veth peer name rail0p index 70")


def _peer_elsewhere(linux: LinuxMachine) -> None:
    linux.ip(HOST, f"link add rail0 index 51 address {MAC} type veth peer name p1 index 71 netns {linux.path('peers')}")
    linux.ip("peers", "link set p1 up")


def _macvlan(linux: LinuxMachine) -> None:
    KINDS["macvlan"](linux, "rail0")


@pytest.mark.parametrize("make", [_peer_on_host, _peer_elsewhere, _macvlan])
def test_what_hangs_on_the_same_as_before_is_taken_home(
    linux: LinuxMachine, make: Callable[[LinuxMachine], None]
) -> None:
    make(linux)
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.meddle(MEDDLINGS)
    attach.assert_home()
    assert attach.lost == []


@pytest.mark.parametrize("in_inner", [False, True], ids=["in the pod", "in a namespace of the pod"])
@pytest.mark.parametrize("make", [_peer_on_host, _peer_elsewhere])
def test_a_link_that_the_pod_put_in_the_place_of_its_own_is_not_taken_home(
    linux: LinuxMachine, make: Callable[[LinuxMachine], None], in_inner: bool
) -> None:
    """Same kind, number, name, address, and number of the other end; that end is where the pod can make one."""
    make(linux)
    attach = Attach(linux, "rail0")
    (move,) = attach.record.plan.moves
    attach.do(attach.kernel)
    number, peer = move.pod_ifindex, move.link.peer
    linux.ip(POD, "link delete rdma0")
    with subprocess.Popen(["nsenter", f"--net={linux.path(POD)}", "unshare", "-n", "sleep", "60"]) as inner:
        try:
            place = f"netns {inner.pid}" if in_inner else ""
            wait_until(lambda: _is_elsewhere(inner.pid, linux), "the inner namespace")
            linux.ip(POD, f"link add rdma0 index {number} address {MAC} type veth peer name evil index {peer} {place}")
            before = hostlook.take(linux.path(HOST))
            assert attach.undo(attach.kernel) == ()
            assert hostlook.difference(before, hostlook.take(linux.path(HOST))) == []
        finally:
            inner.kill()
    assert attach.lost == [("rail0", "the pod has replaced it with another veth that has its number")]
    assert move.link.ifindex not in linux.see()


def test_a_macvlan_that_the_pod_put_in_the_place_of_its_own_is_not_taken_home(linux: LinuxMachine) -> None:
    """On a link of the pod's that has the number of the host's lower link."""
    KINDS["macvlan"](linux, "rail0")
    attach = Attach(linux, "rail0")
    (move,) = attach.record.plan.moves
    attach.do(attach.kernel)
    linux.ip(POD, "link delete rdma0")
    linux.ip(POD, f"link add low index {move.link.lower} type veth peer name low1 index 99")
    linux.ip(POD, f"link add rdma0 link low index {move.pod_ifindex} address {MAC} type macvlan mode bridge")
    assert attach.undo(attach.kernel) == ()
    assert attach.lost == [("rail0", "the pod has replaced it with another macvlan that has its number")]
    assert move.link.ifindex not in linux.see()


def _is_elsewhere(pid: int, linux: LinuxMachine) -> bool:
    inner = Path(f"/proc/{pid}/ns/net").stat().st_ino
    return inner not in {linux.path(POD).stat().st_ino, Path("/proc/self/ns/net").stat().st_ino}


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        ("route add 10.9.0.0/16 nexthop via 10.0.0.9 dev rail0 nexthop via 10.0.1.9 dev rail1", "multipath"),
        ("route add fd09::/64 nexthop via fd00::9 dev rail0 nexthop via fd01::9 dev rail1", "multipath"),
        ("nexthop add id 7 via 10.0.0.9 dev rail0\nroute add 10.9.0.0/16 nhid 7", "next hop object"),
        ("nexthop add id 7 via 10.0.0.9 dev rail0", "has the next hop object 7"),
        ("address add 224.5.5.5/32 dev rail0 autojoin", "has the multicast address 224.5.5.5"),
        ("address add ff05::77/128 dev rail0 autojoin", "has the multicast address ff05::77"),
        ("route add 10.9.0.0/16 via 10.0.1.9 src 10.0.0.1 dev rail1", "source address"),
    ],
)
def test_a_link_that_the_host_could_not_have_back_whole_is_refused(
    linux: LinuxMachine, commands: str, reason: str
) -> None:
    _two_links(linux)
    configure(linux, commands)
    with pytest.raises(PlacementError, match=reason) as caught:
        Attach(linux, "rail0")
    assert caught.value.code is ErrorCode.DEVICE_IN_USE


@pytest.mark.parametrize(
    ("compat_mode", "reason"), [("0", "has the next hop object 7"), ("1", "carries a default route")]
)
def test_the_link_of_a_default_route_through_a_next_hop_object_stays_on_the_host(
    linux: LinuxMachine, compat_mode: str, reason: str
) -> None:
    """In mode 0 the route itself does not name the link."""
    _two_links(linux)
    assert sysctls.put(linux.path(HOST), {"ipv4/nexthop_compat_mode": compat_mode}) == set()
    configure(linux, "nexthop add id 7 via 10.0.0.9 dev rail0\nroute add default nhid 7")
    with pytest.raises(PlacementError, match=reason) as caught:
        Attach(linux, "rail0")
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    use = linux.kernel.host_use(["rail0", "rail1"])
    told = {link.name: "next hop object 7" in " ".join(link.unreturnable) for link in use.links}
    assert (told["rail0"], told["rail1"]) == (True, False), "known before the device is chosen"


FILTER = "protocol ip u32 match u32 0 0"


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        (f"qdisc add dev rail0 clsact\nfilter add dev rail0 ingress {FILTER}", r"has tc filters \(ingress\)"),
        (f"qdisc add dev rail0 clsact\nfilter add dev rail0 egress {FILTER}", r"has tc filters \(egress\)"),
        (f"qdisc add dev rail0 ingress\nfilter add dev rail0 parent ffff: {FILTER}", r"has tc filters \(at ffff:\)"),
        (
            f"qdisc add dev rail0 root handle 1: htb\nfilter add dev rail0 parent 1: {FILTER} flowid 1:1",
            r"has tc filters \(at 1:\)",
        ),
        (
            "qdisc add dev rail0 root handle 1: htb\n"
            "class add dev rail0 parent 1: classid 1:5 htb rate 1gbit quantum 1500"
            f"\nfilter add dev rail0 parent 1:5 {FILTER} flowid 1:1",
            r"has tc filters \(at 1:5\)",
        ),
        ("qdisc add dev rail0 ingress_block 7 ingress", "has the qdisc ingress ffff: with a shared block of filters"),
        (
            "qdisc add dev rail0 root handle 1: stab overhead 8 linklayer atm htb",
            "has the qdisc htb 1: with a table of sizes",
        ),
    ],
)
def test_a_link_whose_queues_the_host_could_not_have_back_is_refused_before_it_moves(
    linux: LinuxMachine, commands: str, reason: str
) -> None:
    add_veth(linux, "rail0")
    for command in commands.splitlines():
        linux.run(HOST, "tc", *command.split())
    with pytest.raises(PlacementError, match=reason) as caught:
        Attach(linux, "rail0")
    assert caught.value.code is ErrorCode.DEVICE_IN_USE
    rail = next(number for number, link in linux.see().items() if link.name == "rail0")
    survey = linux.kernel.survey((rail,))
    assert re.search(reason, " ".join(survey.links[rail].unreturnable)), "known when the device is chosen"


@pytest.mark.parametrize(
    "command",
    [
        "root handle 1: tbf rate 20gbit burst 9mbit limit 9mbit",
        "root handle 1: tbf rate 1mbit burst 32kbit latency 50ms peakrate 2mbit minburst 1540",
        "root tbf rate 1mbit burst 32kbit latency 50ms overhead 20 linklayer atm",
        "root pfifo limit 5",
        "root handle 7: bfifo limit 3000",
        "root pfifo_head_drop limit 5",
        "root handle 9: pfifo_fast",
        "root handle 9: noqueue",
        "root handle 1: htb default 0x5 r2q 7 direct_qlen 55",
        "ingress",
        "clsact",
    ],
)
@pytest.mark.parametrize("up", [True, False], ids=["up", "down"])
def test_a_queueing_discipline_comes_back_with_its_numbers(linux: LinuxMachine, command: str, up: bool) -> None:
    add_veth(linux, "rail0")
    if up:
        linux.ip(HOST, "link set rail0 up")
    linux.run(HOST, "tc", "qdisc", "add", "dev", "rail0", *command.split())
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    linux.run(POD, "tc", "qdisc", "add", "dev", "rdma0", "root", "handle", "5:", "pfifo", "limit", "3")
    attach.assert_home()


def test_mq_comes_back_with_what_its_queues_have(linux: LinuxMachine) -> None:
    peers = linux.path("peers")
    linux.ip(HOST, f"link add rail0 numtxqueues 4 address {MAC} type veth peer name p1 netns {peers}")
    linux.ip("peers", "link set p1 up")
    linux.ip(HOST, "link set rail0 up")
    for command in (
        "root handle 1: mq",
        "parent 1:1 handle 10: pfifo limit 3",
        "parent 1:3 handle 30: tbf rate 1mbit burst 32kbit latency 50ms",
    ):
        linux.run(HOST, "tc", "qdisc", "add", "dev", "rail0", *command.split())
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    attach.assert_home()


def _two_links(linux: LinuxMachine) -> None:
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    for number in range(2):
        linux.add_link(f"rail{number}", f"02:11:00:00:00:0{number}")
        configure(
            linux,
            f"link set rail{number} up\naddress add 10.0.{number}.1/24 dev rail{number}\n"
            f"address add fd0{number}::1/64 dev rail{number}\nroute add 10.{number + 1}.0.0/16 dev rail{number}",
        )
    _settle(linux)


def _settle(linux: LinuxMachine) -> None:
    hostlook.take_settled(linux.path(HOST))
