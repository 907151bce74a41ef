"""Links that have everything, and their way into a pod and home, on the real kernel."""

from collections.abc import Callable, Sequence

import pytest

from nri_rdma.attach.journal import decode_record, encode_record
from nri_rdma.attach.port import Kernel
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.attach.steps import steps_of
from nri_rdma.attach.transaction import do_steps, undo_steps
from nri_rdma.errors import NriRdmaError
from nri_rdma.host.netlink.linux_kernel import LinuxKernel
from nri_rdma.host.netlink.routes.route_requests import PROTOCOL
from nri_rdma.model.request import DeviceRequest
from nri_rdma.observe.spans import Recorder
from tests.contract.machines import HOST, POD, HostKernel, LinuxMachine
from tests.rig import hostlook, sysctls
from tests.rig.deadline import DeadlineError, wait_until
from tests.unit.attach.builders import make_device, make_placed, record_of
from tests.unit.attach.meddlings import Meddling

SPANS = Recorder(capacity=1)
MAC = "02:11:00:00:00:01"

RICH = """
link add uplink type veth peer name uplink1
link property add dev rail0 altname enp1
link property add dev rail0 altname enp2
link set rail0 alias left
link set rail0 mtu 1400 txqueuelen 77 group 5
link set rail0 gso_max_size 30000 gso_max_segs 20
link set rail0 allmulticast on
link set rail0 up
address add 10.0.0.1/24 broadcast 10.0.0.200 dev rail0
address add 10.0.0.2/24 dev rail0
address add 10.0.1.1/24 label rail0:1 metric 50 dev rail0
address add 10.0.2.1/24 noprefixroute dev rail0
address add 10.0.3.1 peer 10.0.3.2/32 scope link dev rail0
address add 10.0.4.1/24 preferred_lft 0 valid_lft forever dev rail0
address add fd00::1/64 dev rail0
address add fd00:1::1/64 preferred_lft 0 valid_lft 3000 dev rail0
address add fd00:2::1/128 noprefixroute dev rail0
route add 10.1.0.0/16 via 10.0.0.9 metric 5 mtu lock 1300 advmss 1200 dev rail0
route add 10.1.0.0/16 via 10.0.0.8 metric 6 table 100 proto static dev rail0
route add 10.2.0.0/16 via 172.16.0.1 onlink dev rail0
route add 10.3.0.0/16 src 10.0.0.2 scope link tos 8 dev rail0
route add 10.4.0.1/32 proto bird dev rail0
route add fd05::/64 via fd00::9 metric 7 pref high dev rail0
route add fd06::/64 expires 3000 dev rail0
route add fd07::/64 via fe80::9 table 100 dev rail0
route add blackhole 10.9.0.0/16
neighbour add 10.0.0.9 lladdr 02:00:00:00:00:99 nud permanent dev rail0
neighbour add proxy 10.0.0.77 dev rail0
neighbour add proxy fd00::77 dev rail0
neighbour add fd00::9 lladdr 02:00:00:00:00:99 nud permanent router dev rail0
rule add iif rail0 table 100 priority 99
"""


def add_veth(linux: LinuxMachine, name: str) -> None:
    linux.add_link(name, MAC)


def add_macvlan(linux: LinuxMachine, name: str) -> None:
    linux.add_link("lower0", "02:11:00:00:00:77")
    linux.ip(HOST, "link set lower0 up")
    linux.ip(HOST, f"link add {name} link lower0 address {MAC} type macvlan mode bridge")


def add_vlan(linux: LinuxMachine, name: str) -> None:
    linux.add_link("lower0", "02:11:00:00:00:77")
    linux.ip(HOST, "link set lower0 up")
    try:
        linux.ip(HOST, f"link add {name} link lower0 address {MAC} type vlan id 5")
    except RuntimeError as error:
        if "Unknown device type" not in str(error):
            raise
        pytest.skip("this kernel has no VLAN devices (CONFIG_VLAN_8021Q)")


def add_dummy(linux: LinuxMachine, name: str) -> None:
    try:
        linux.ip(HOST, f"link add {name} address {MAC} type dummy")
    except RuntimeError as error:
        if "Unknown device type" not in str(error):
            raise
        pytest.skip("this kernel has no dummy devices (CONFIG_DUMMY)")


RICH_QUEUES = """
tc qdisc add dev rail0 root handle 1: htb default 0x10
tc class add dev rail0 parent 1: classid 1:1 htb rate 100mbit quantum 1500
tc class add dev rail0 parent 1:1 classid 1:10 htb rate 50mbit ceil 80mbit quantum 1500 prio 2
tc class add dev rail0 parent 1:1 classid 1:20 htb rate 9gbit burst 9k quantum 3000
tc qdisc add dev rail0 parent 1:10 handle 10: tbf rate 1mbit burst 32kbit latency 400ms
tc qdisc add dev rail0 parent 1:20 handle 20: pfifo limit 77
tc qdisc add dev rail0 clsact
"""
RICH_FORWARDING = """
bridge fdb add 02:11:22:33:44:55 dev rail0 self permanent
bridge fdb add 01:1b:19:00:00:00 dev rail0 self permanent
bridge fdb add 33:33:00:00:47:11 dev rail0 self permanent
"""

KINDS: dict[str, Callable[[LinuxMachine, str], None]] = {
    "veth": add_veth,
    "macvlan": add_macvlan,
    "vlan": add_vlan,
    "dummy": add_dummy,
}


RICH_SYSCTLS = {
    "ipv4/conf/rail0/rp_filter": "2",
    "ipv4/conf/rail0/arp_ignore": "1",
    "ipv4/conf/rail0/arp_announce": "2",
    "ipv4/conf/rail0/accept_local": "1",
    "ipv4/conf/rail0/promote_secondaries": "1",
    "ipv4/neigh/rail0/gc_stale_time": "77",
    "ipv6/conf/rail0/accept_ra": "0",
    "ipv6/conf/rail0/router_solicitation_interval": "9",
    "ipv6/neigh/rail0/retrans_time_ms": "1100",
}


def configure(linux: LinuxMachine, commands: str) -> None:
    """`ip COMMAND` on the host for every line."""
    for command in filter(None, commands.splitlines()):
        linux.ip(HOST, command)


def make_rich(linux: LinuxMachine, kind: str) -> None:
    """A link rail0 of the host that has everything, and a bystander."""
    KINDS[kind](linux, "rail0")
    configure(linux, RICH)
    more = RICH_QUEUES
    if kind != "macvlan":  # which takes addresses in its mode passthru only
        more += RICH_FORWARDING
    for command in filter(None, more.splitlines()):
        linux.run(HOST, *command.split())
    assert sysctls.put(linux.path(HOST), RICH_SYSCTLS) == set()


def _rules_of_pod(linux: LinuxMachine) -> frozenset[str]:
    shown = {way: linux.ip(POD, f"{way} rule") for way in ("-4", "-6")}
    return frozenset(f"{way} {line.strip()}" for way, lines in shown.items() for line in lines.splitlines())


class Attach:
    """One attach on a machine; `before` is what must be the same after it, `network` what the pod asks for, `netdevs`
    what it has from earlier ones."""

    def __init__(
        self,
        linux: LinuxMachine,
        *names: str,
        before: hostlook.Look | None = None,
        mtu: int | None = 1300,
        network: DeviceRequest | None = None,
        netdevs: frozenset[int] = frozenset(),
    ) -> None:
        self.linux = linux
        self.lost: list[tuple[str, str]] = []
        self.before = before or hostlook.take_settled(linux.path(HOST))
        self.rules_of_pod = _rules_of_pod(linux)
        self.kernel: HostKernel = linux.kernel
        self.namespace = self.kernel.open_namespace(linux.pod_path)
        links = [link for link in self.kernel.links(self.kernel.host) if link.name in names]
        devices = tuple(make_device(f"mlx5_{number}", [link]) for number, link in enumerate(links))
        self.record: SandboxRecord = record_of(
            self.kernel, self.namespace, make_placed(devices, mtu=mtu, network=network), netdevs=netdevs
        )

    def do(self, kernel: Kernel) -> None:
        do_steps(kernel, self.namespace, steps_of(self.record.plan), SPANS)

    def undo(self, kernel: Kernel) -> tuple[NriRdmaError, ...]:
        steps = steps_of(self.record.plan, lambda move, why: self.lost.append((move.link.name, why)))
        return undo_steps(kernel, self.namespace, steps, SPANS)

    def restart(self) -> None:
        """The daemon was killed and starts anew."""
        self.namespace.close()
        if self.kernel is not self.linux.kernel:
            self.kernel.host.close()
        self.kernel = LinuxKernel(str(self.linux.path(HOST)))
        self.record = decode_record(encode_record(self.record), where="memory")
        self.namespace = self.kernel.open_namespace(self.linux.pod_path)

    def meddle(self, acts: Sequence[Meddling]) -> None:
        for move in self.record.plan.moves:
            for act in acts:
                act(self.kernel, self.namespace, move.pod_ifindex)

    def assert_rules_of_pod(self) -> None:
        """None of ours is left, and none that was there before is gone; the pod may have added some itself."""
        now = _rules_of_pod(self.linux)
        assert self.rules_of_pod <= now
        assert not [it for it in now - self.rules_of_pod if it.endswith(f"proto {PROTOCOL}")]

    def assert_home(self, *, but: str = "") -> None:
        """Everything is as before, but for a difference that begins so."""
        for _ in range(2):
            wait_until(lambda: self.undo(self.kernel) == (), "the undo to succeed", 5)
            self.assert_rules_of_pod()
            after = hostlook.take_settled(self.linux.path(HOST))
            changed = [it for it in hostlook.difference(self.before, after) if not but or not it.startswith(but)]
            assert not changed, changed

    def assert_soon_home(self) -> None:
        """The same without waiting for a host that is equal to go on being it: for many in a row."""
        for _ in range(2):
            wait_until(lambda: self.undo(self.kernel) == (), "the undo to succeed", 5)
            self.assert_rules_of_pod()
            changed: list[str] = []

            def is_equal(changed: list[str] = changed) -> bool:
                changed[:] = hostlook.difference(self.before, hostlook.take(self.linux.path(HOST)))
                return not changed

            try:
                wait_until(is_equal, "the host to be equal", 5)
            except DeadlineError:
                raise AssertionError(changed) from None
