"""What a link has for itself under /proc/sys/net goes into a pod and comes home, whatever of it this kernel has."""

import subprocess
import sys

import pytest

from nri_rdma.errors import PlacementError
from nri_rdma.model.link import sysctls_of
from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import MAC, Attach, add_veth, configure
from tests.rig import hostlook, sysctls
from tests.rig.deadline import wait_until
from tests.rig.linkops import capture

pytestmark = pytest.mark.root

NOT_TOLD = {"ipv4/conf/mc_forwarding", "ipv6/conf/mc_forwarding", "ipv6/conf/addr_gen_mode"}
"""A routing daemon's socket sets the first two; the third is told elsewhere."""
UNITS = {
    "base_reachable_time": ("base_reachable_time_ms", 1000),
    "delay_first_probe_time": ("delay_first_probe_time_ms", 1000),
    "gc_stale_time": ("gc_stale_time_ms", 1000),
    "anycast_delay": ("anycast_delay_ms", 10),
    "locktime": ("locktime_ms", 10),
    "proxy_delay": ("proxy_delay_ms", 10),
}
"""Files of neighbour tables whose values are seconds, or hundredths of them, rounded down: the kernel counts in ticks,
of which four hundredths are a whole number whether a second has 100, 250 or 1000."""
SAID_TWICE = {"base_reachable_time", "retrans_time", "unres_qlen"}
UNTOUCHED = {"ipv6/conf/disable_ipv6", "ipv6/conf/mtu"}
"""Set by tests of their own: the first takes IPv6 away, the second follows the link's MTU when the carrier comes."""


@pytest.fixture
def rail(linux: LinuxMachine) -> LinuxMachine:
    """A host whose link rail0 is up."""
    add_veth(linux, "rail0")
    configure(linux, "link set rail0 up\naddress add 10.0.0.1/24 dev rail0\naddress add fd00::1/64 dev rail0")
    return linux


def _shown(linux: LinuxMachine, place: str, name: str) -> dict[str, str]:
    """What the files say, by our names and in our units."""
    found = {}
    for key, value in sysctls.of_link(sysctls.take(linux.path(place)), name):
        family, table, file = key.split("/")
        if table == "neigh":
            if file in SAID_TWICE:
                continue
            if file in UNITS:
                file, factor = UNITS[file]
                value = str(int(value) * factor)  # noqa: PLW2901 - the same value in another unit
        found[f"{family}/{table}/{file}"] = value
    return {key: value for key, value in found.items() if key not in NOT_TOLD}


def _told(linux: LinuxMachine, ifindex: int) -> dict[str, str]:
    return sysctls_of(capture(linux.kernel, linux.kernel.host, ifindex).sysctls)


def _other_values(linux: LinuxMachine, name: str) -> dict[str, str]:
    """Another value for each of a link's files, by path."""
    found = {}
    for key, value in sysctls.of_link(sysctls.take(linux.path(HOST)), name):
        family, table, file = key.split("/")
        if key not in NOT_TOLD | UNTOUCHED and not (table == "neigh" and file in SAID_TWICE):
            number, step = int(value), 4 if file in UNITS and UNITS[file][1] == 10 else 1
            found[f"{family}/{table}/{name}/{file}"] = str(number - step if number > 0 else number + step)
    return found


def test_every_file_of_this_kernel_is_told_as_it_is(rail: LinuxMachine) -> None:
    ifindex = next(number for number, link in rail.see().items() if link.name == "rail0")
    assert _told(rail, ifindex) == _shown(rail, HOST, "rail0")
    refused = sysctls.put(rail.path(HOST), _other_values(rail, "rail0"))
    assert _told(rail, ifindex) == _shown(rail, HOST, "rail0")
    assert refused == set()


def test_every_sysctl_that_was_changed_comes_home_and_nothing_of_it_goes_to_the_pod(rail: LinuxMachine) -> None:
    sysctls.put(rail.path(HOST), _other_values(rail, "rail0"))
    before = _shown(rail, HOST, "rail0")
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    in_pod = _shown(rail, POD, "rdma0")
    assert in_pod.keys() == before.keys()
    assert sum(before[key] != in_pod[key] for key in before) > 100
    attach.assert_home()
    assert _shown(rail, HOST, "rail0") == before


def test_what_a_pod_set_stays_not_on_the_host(rail: LinuxMachine) -> None:
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    values = {key.replace("rail0", "rdma0"): "1" for key in sysctls.take(rail.path(HOST)) if "/rail0/" in key}
    sysctls.put(rail.path(POD), values)
    attach.assert_home()


def test_a_link_without_ipv6_comes_home_without_it(rail: LinuxMachine) -> None:
    sysctls.put(rail.path(HOST), {"ipv6/conf/rail0/disable_ipv6": "1"})
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    # Linux joins the group of all nodes when a link arrives, and leaves it only where IPv6 is taken away from a link
    # that is up; docs/operations.md says that such entries are the kernel's defaults afterwards.
    attach.assert_home(but="forwarding entry 33:33:00:00:00:01 of rail0")
    (link,) = (link for link in rail.see().values() if link.name == "rail0")
    assert link.addresses == {"10.0.0.1/24"}


def test_a_link_comes_home_to_a_host_whose_defaults_are_others(rail: LinuxMachine) -> None:
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    defaults = {"ipv4/conf/default/rp_filter": "2", "ipv6/conf/default/accept_ra": "0"}
    before = dict(attach.before.sysctls)
    sysctls.put(rail.path(HOST), defaults)
    assert attach.undo(attach.kernel) == ()
    after = sysctls.take(rail.path(HOST))
    changed = {key for key in before.keys() | after.keys() if "/rail0/" in key and before.get(key) != after.get(key)}
    assert changed == set()


def test_stable_addresses_keep_their_secret(linux: LinuxMachine) -> None:
    add_veth(linux, "rail0")
    sysctls.put(linux.path(HOST), {"ipv6/conf/rail0/stable_secret": "2001:db8::77"})
    configure(linux, "link set rail0 up")
    attach = Attach(linux, "rail0")
    (link,) = (link for link in linux.see().values() if link.name == "rail0")
    assert link.mac == MAC
    assert link.addresses
    assert link.addresses != {"fe80::11:ff:fe00:1/64"}
    attach.do(attach.kernel)
    assert attach.undo(attach.kernel) == ()
    after = hostlook.take_settled(linux.path(HOST))
    (address,) = link.addresses
    mark = f"address {address} of rail0: stable-privacy was true, is absent"  # which only the kernel can make
    assert hostlook.difference(attach.before, after) == [mark]


ANNOUNCE = """
import socket, struct
sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
router_advertisement = struct.pack("!BBHBBHII", 134, 0, 0, 64, 0, 1800, 0, 0)
sock.sendto(router_advertisement, ("ff02::1", 0, 0, socket.if_nametoindex("p2")))
"""


@pytest.fixture
def announced(rail: LinuxMachine) -> LinuxMachine:
    """A host with a default route over up0 that a router announced."""
    rail.add_link("up0", "02:11:00:00:00:99")
    sysctls.put(rail.path(HOST), {"ipv6/conf/up0/forwarding": "0", "ipv6/conf/up0/accept_ra": "1"})
    rail.ip(HOST, "link set up0 up")

    def has_route() -> bool:
        inside = ["nsenter", f"--net={rail.path('peers')}", sys.executable, "-c", ANNOUNCE]
        subprocess.run(inside, check=False, capture_output=True)  # until its own address is there
        return _default_route(rail)

    wait_until(has_route, "a default route that was announced")
    return rail


def _default_route(linux: LinuxMachine) -> bool:
    return "proto ra" in linux.ip(HOST, "-6 route show default")


def test_to_set_ipv6_forwarding_on_a_link_ends_a_default_route_over_another_one(announced: LinuxMachine) -> None:
    sysctls.put(announced.path(HOST), {"ipv6/conf/rail0/forwarding": "1"})
    assert not _default_route(announced)  # the kernel's doing, and why we refuse what follows


def test_a_link_that_forwards_ipv6_is_not_given_when_its_return_would_end_a_default_route(
    rail: LinuxMachine, request: pytest.FixtureRequest
) -> None:
    sysctls.put(rail.path(HOST), {"ipv6/conf/rail0/forwarding": "1"})
    request.getfixturevalue("announced")
    with pytest.raises(PlacementError, match=r"forwards IPv6, and to set that again would end .* over up0"):
        Attach(rail, "rail0")
    sysctls.put(rail.path(HOST), {"ipv6/conf/up0/accept_ra": "2"})
    attach = Attach(rail, "rail0")  # which the kernel leaves alone
    attach.do(attach.kernel)
    attach.assert_home()
    assert _default_route(rail)


def test_ipv6_forwarding_is_not_given_back_while_that_would_end_a_default_route(
    rail: LinuxMachine, request: pytest.FixtureRequest
) -> None:
    sysctls.put(rail.path(HOST), {"ipv6/conf/rail0/forwarding": "1"})
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    request.getfixturevalue("announced")
    (error,) = attach.undo(attach.kernel)
    assert "that would end the default route over up0" in str(error)
    assert _default_route(rail)
    assert next(link for link in rail.see().values() if link.name == "rail0").up
    rail.ip(HOST, "link set up0 down")
    rail.ip(HOST, "link delete up0")
    attach.assert_home()


def test_rules_that_name_a_link_find_it_again_when_it_is_home(rail: LinuxMachine) -> None:
    configure(rail, "rule add iif rail0 table 100\nrule add oif rail0 table 101\n-6 rule add iif rail0 table 102")
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    assert rail.ip(HOST, "rule show").count("[detached]") == 2
    attach.assert_home()
    assert "[detached]" not in rail.ip(HOST, "rule show") + rail.ip(HOST, "-6 rule show")


def test_rules_follow_a_name_that_somebody_took_meanwhile_and_then_come_back(rail: LinuxMachine) -> None:
    configure(rail, "rule add iif rail0 table 100")
    attach = Attach(rail, "rail0")
    attach.do(attach.kernel)
    rail.ip(HOST, "link add other type veth peer name rail0")
    assert "[detached]" not in rail.ip(HOST, "rule show")
    assert attach.undo(attach.kernel) != ()  # its name is taken
    rail.ip(HOST, "link delete other")
    assert "[detached]" in rail.ip(HOST, "rule show")
    attach.assert_home()
    assert "[detached]" not in rail.ip(HOST, "rule show")
