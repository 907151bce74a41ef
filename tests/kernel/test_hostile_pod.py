"""What a pod with NET_ADMIN does to the link that it was given: once it is home, the host is as before."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.machines import HOST, POD, LinuxMachine
from tests.kernel.journey import Attach, add_veth, configure
from tests.rig import hostlook
from tests.rig.deadline import wait_until

pytestmark = pytest.mark.root
ADDRESSES, ROUTES, LINKS, NAMES = 500, 5000, 100, 100
"""So many that each takes several datagrams, and so few that the test is short."""
_EACH = "\n"
ATTACKS = {
    "names of the host": "link set rdma0 down\nlink set lo down\nlink set rdma0 name uplink",
    "a name of any bytes": "link set rdma0 down\nlink set rdma0 name a\x1b[31m%d",
    "many addresses": _EACH.join(f"address add 10.{it >> 8}.{it & 255}.1/32 dev rdma0" for it in range(ADDRESSES)),
    "many routes": "link set rdma0 up\n"
    + _EACH.join(f"route add 172.{16 + (it >> 8)}.{it & 255}.0/24 dev rdma0" for it in range(ROUTES)),
    "many macvlans": _EACH.join(f"link add link rdma0 name m{it} type macvlan mode bridge" for it in range(LINKS)),
    "a macvlan that has it alone": "link add link rdma0 name m0 type macvlan mode passthru\nlink set m0 up",
    "alternative names": _EACH.join(f"link property add dev rdma0 altname alt{it}" for it in range(NAMES)),
    "a name of the host as another one": "link property add dev rdma0 altname uplink",
    "a port of a bridge": "link add bridge0 type bridge\nlink set rdma0 master bridge0\nlink set bridge0 up",
    "a port of a VRF": "link add vrf0 type vrf table 10\nlink set rdma0 master vrf0",
    "neighbours": _EACH.join(
        f"neighbour add 10.0.0.{it} lladdr 02:00:00:00:00:{it:02x} dev rdma0" for it in range(1, 250)
    ),
    "rules": "rule add iif rdma0 table 77 priority 5\nrule add oif rdma0 blackhole priority 6",
    "tunnels over it": "link add vx0 type vxlan id 1 dev rdma0 dstport 4789\nlink add gre0x type gretap dev rdma0",
    "a VLAN on it": "link add link rdma0 name v7 type vlan id 7\nlink set v7 up",
    "everything off": "link set rdma0 down arp off multicast off\nlink set rdma0 mtu 68 txqueuelen 0 group 99",
    "another address": "link set rdma0 down\nlink set rdma0 address 02:ff:ff:ff:ff:ff\nlink set rdma0 alias mine",
}


@pytest.fixture
def attach(linux: LinuxMachine) -> Iterator[Attach]:
    """A host with an uplink and a rail, which a pod has."""
    add_veth(linux, "rail0")
    configure(
        linux,
        "link add uplink type veth peer name uplink1\nlink set rail0 up\naddress add 10.0.0.1/24 dev rail0\n"
        "address add fd00::1/64 dev rail0\nroute add 10.9.0.0/16 via 10.0.0.9 dev rail0",
    )
    made = Attach(linux, "rail0")
    made.do(made.kernel)
    yield made


def _in_pod(linux: LinuxMachine, commands: str) -> int:
    """Run `ip` with each line; what this kernel refuses is passed over. Return how many lines it took."""
    inside = ["nsenter", f"--net={linux.path(POD)}", "ip", "-force", "-batch", "-"]
    done = subprocess.run(inside, input=commands, text=True, capture_output=True, check=False)
    return len(commands.splitlines()) - done.stderr.count("Command failed")


@pytest.mark.parametrize("name", ATTACKS)
def test_the_host_is_as_before(attach: Attach, name: str) -> None:
    if not _in_pod(attach.linux, ATTACKS[name]):
        pytest.skip(f"this kernel has no such devices: {name}")
    attach.assert_home()


def test_a_queue_discipline_and_a_filter_of_the_pod_stay_not_on_the_host(attach: Attach) -> None:
    inside = ["nsenter", f"--net={attach.linux.path(POD)}", "tc"]
    done = subprocess.run([*inside, "qdisc", "add", "dev", "rdma0", "clsact"], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this kernel has no clsact (CONFIG_NET_SCH_INGRESS)")
    attach.assert_home()


@pytest.mark.parametrize("name", ["rdma0", "rail0", "uplink"])
def test_a_link_that_the_pod_pushed_into_a_namespace_of_its_own_takes_nothing_with_it(
    attach: Attach, name: str
) -> None:
    """The rail is lost with the pod, and it is a virtual one; all else of the host is as before."""
    before = hostlook.take(attach.linux.path(HOST))
    inside = ["nsenter", f"--net={attach.linux.path(POD)}"]
    with subprocess.Popen([*inside, "unshare", "-n", "sleep", "60"]) as inner:
        try:
            wait_until(lambda: _is_elsewhere(inner.pid, attach.linux), "the inner namespace")
            attach.linux.ip(POD, f"link set rdma0 netns {inner.pid} name {name}")
        finally:
            inner.kill()
    assert "rdma0" not in {link.name for link in attach.linux.see(POD).values()}
    assert attach.undo(attach.kernel) == ()
    assert hostlook.difference(before, hostlook.take(attach.linux.path(HOST))) == []


def _is_elsewhere(pid: int, linux: LinuxMachine) -> bool:
    inner = Path(f"/proc/{pid}/ns/net").stat().st_ino
    return inner not in {linux.path(POD).stat().st_ino, Path("/proc/self/ns/net").stat().st_ino}
