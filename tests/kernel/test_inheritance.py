"""What a netdev brings into a pod on the real kernel, where the pod cannot have all of it."""

import json

import pytest

from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import Attach, add_veth, configure

pytestmark = pytest.mark.root

POLICY = """
link set rail0 up
address add 10.0.0.1/31 dev rail0
address add fd00::1/64 dev rail0 nodad
route add default via 10.0.0.0 dev rail0 table 101
-6 route add default via fd00::2 dev rail0 table 101
rule add from 10.0.0.1 lookup 101
-6 rule add from fd00::1 lookup 101
"""


def _addresses(linux: LinuxMachine, name: str) -> set[str]:
    (link,) = json.loads(linux.ip(POD, f"-j address show dev {name}"))
    return {f"{it['local']}/{it['prefixlen']}" for it in link["addr_info"] if it["scope"] == "global"}


def test_a_pod_without_ipv6_gets_the_rest(linux: LinuxMachine) -> None:
    """The kernel would refuse an IPv6 address there (EACCES), and with it the pod."""
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add 10.0.0.1/31 dev rail0\naddress add fd00::1/64 dev rail0")
    linux.run(POD, "sh", "-c", "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    (move,) = attach.record.plan.moves
    assert _addresses(linux, move.pod_name) == {"10.0.0.1/31"}
    assert move.inherited.left_out == ("fd00::1/64: the pod has no IPv6",)
    attach.assert_home()


def test_a_default_route_of_a_table_of_its_own_leaves_the_pods_own_alone(linux: LinuxMachine) -> None:
    """Policy routing per rail, in both families."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    pods = ("address add 192.0.2.2/24 dev eth0", "address add 2001:db8::2/64 dev eth0 nodad", "link set eth0 up")
    for command in (*pods, "route add default via 192.0.2.1", "-6 route add default via 2001:db8::1"):
        linux.ip(POD, command)
    add_veth(linux, "rail0")
    configure(linux, POLICY)
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    name = attach.record.plan.moves[0].pod_name
    for family, own, leaf, gateway, far in (
        ("-4", "10.0.0.1", "10.0.0.0", "192.0.2.1", "198.51.100.1"),
        ("-6", "fd00::1", "fd00::2", "2001:db8::1", "2001:db8:ffff::1"),
    ):
        (main,) = json.loads(linux.ip(POD, f"{family} -j route show default"))
        assert (main["gateway"], main["dev"]) == (gateway, "eth0")
        (unbound,) = json.loads(linux.ip(POD, f"{family} -j route get {far}"))
        (bound,) = json.loads(linux.ip(POD, f"{family} -j route get {far} from {own}"))
        assert (unbound["gateway"], unbound["dev"]) == (gateway, "eth0")
        assert (bound["gateway"], bound["dev"], int(bound["table"])) == (leaf, name, 101)
    assert attach.record.plan.moves[0].inherited.left_out == ()
    attach.assert_home()


def test_an_address_of_a_lease_stays_as_long_as_the_pod(linux: LinuxMachine) -> None:
    """Nobody renews it there."""
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add 10.0.0.1/24 valid_lft 600 preferred_lft 300 dev rail0")
    attach = Attach(linux, "rail0")
    attach.do(attach.kernel)
    (link,) = json.loads(linux.ip(POD, f"-j address show dev {attach.record.plan.moves[0].pod_name}"))
    (own,) = (it for it in link["addr_info"] if it["local"] == "10.0.0.1")
    assert (own["valid_life_time"], own["preferred_life_time"]) == (2**32 - 1, 2**32 - 1)
    attach.assert_home()
    (link,) = json.loads(linux.ip(HOST, "-j address show dev rail0"))
    (own,) = (it for it in link["addr_info"] if it["local"] == "10.0.0.1")
    assert own["valid_life_time"] <= 600


def test_two_netdevs_in_one_subnet_have_their_tables_and_the_pod_none_of_them_afterwards(linux: LinuxMachine) -> None:
    for number in (0, 1):
        linux.add_link(f"rail{number}", f"02:11:00:00:00:0{number + 1}")
        configure(linux, f"link set rail{number} up\naddress add 10.0.0.{number + 1}/24 dev rail{number}")
    attach = Attach(linux, "rail0", "rail1")
    attach.do(attach.kernel)
    for move in attach.record.plan.moves:
        source = move.link.addresses[0].text.split("/")[0]
        (route,) = json.loads(linux.ip(POD, f"-j route get 10.0.0.9 from {source}"))
        assert route["dev"] == move.pod_name
        for key, value in (("rp_filter", "2"), ("arp_ignore", "1"), ("arp_announce", "2")):
            assert linux.sysctl(move.pod_name, f"ipv4/conf/{key}", POD) == value
    attach.assert_home()


def test_a_netdev_that_comes_later_into_the_same_subnet_has_a_table_of_its_own(linux: LinuxMachine) -> None:
    """Also where the pod has no default route, so that the first netdev could be taken for its cluster network."""
    linux.add_link("eth0", "02:11:00:00:00:50", POD)
    for command in ("address add 192.0.2.2/24 dev eth0", "link set eth0 up"):
        linux.ip(POD, command)
    for number in (0, 1):
        linux.add_link(f"rail{number}", f"02:11:00:00:00:0{number + 1}")
        configure(linux, f"link set rail{number} up\naddress add 10.0.0.{number + 1}/24 dev rail{number}")
        configure(linux, f"route add 10.1.0.0/16 via 10.0.0.9 dev rail{number} metric {number + 5}")
    configure(linux, "route change 10.1.0.0/16 via 10.0.0.9 dev rail0 metric 5")
    first = Attach(linux, "rail0")
    first.do(first.kernel)
    (earlier,) = first.record.plan.moves
    second = Attach(linux, "rail1", netdevs=frozenset({earlier.pod_ifindex}))
    second.do(second.kernel)
    (later,) = second.record.plan.moves
    for move, source in ((earlier, "10.0.0.1"), (later, "10.0.0.2")):
        for target in ("10.0.0.9", "10.1.0.1"):
            (route,) = json.loads(linux.ip(POD, f"-j route get {target} from {source}"))
            assert route["dev"] == move.pod_name
    assert linux.sysctl(later.pod_name, "ipv4/conf/arp_ignore", POD) == "1"
    assert later.inherited.left_out == (
        "a table for 10.0.0.1: the pod had that address before, on a netdev that came alone",
    )
    second.assert_home()
    first.assert_home()
