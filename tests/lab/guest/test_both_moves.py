"""One adapter whose netdev and RDMA device both move into the pod and home, on the machine's kernel.

A soft device cannot follow its netdev: no adapter of the lab makes both moves. So the tests call two halves one
adapter. Its netdev is the machine's NIC. Its RDMA device is a soft one, which the CNI plugin (cni_rdma.py) makes in the
pod, on the pod's own interface; the kernel puts it into the host's namespace. One link of a sysfs tree ties them:
`class/infiniband/NAME/device` leads to the NIC's function. All else in that tree is the machine's own sysfs, and both
moves are the kernel's.

The order of the moves is read from the kernel's uevents, which are numbered.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.lab.guest import kernel, verbs
from tests.lab.guest.conftest import DAEMON, NRI_SOCKET, RESULTS, STATE
from tests.lab.guest.process import Server
from tests.lab.guest.test_cells import bound, links
from tests.lab.guest.uevents import Uevents
from tests.rig.cri import Container, Cri
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.faults import Faults

POD, PEER = "rxe1-both", "rxe1-peer"
DEVICE, IN_POD = f"{POD}.0", "rail0"
PREFIX = "both.noderesource.dev"
ASKS = {f"{PREFIX}/pod": f"- {{mode: exclusive, match: {{device: {DEVICE}}}, interface: {{name: {IN_POD}}}}}"}
ADDRESS, ROUTE = "198.51.100.7/24", "203.0.113.0/24 via 198.51.100.1"
SYSFS = Path("/sys")
NETDEV_AWAY, NETDEV_HOME, DEVICE_AWAY, DEVICE_HOME = "netdev away", "netdev home", "device away", "device home"
SECOND_ATTEMPT_WAITS = "delay:10000"
"""Time to look at the host between two attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """The adapter of two halves, and the daemon that knows it."""

    netdev: str
    daemon: Server
    faults: Faults


@pytest.fixture(scope="module")
def nic(cri: Cri, daemon: Server, rdma_device: str) -> Iterator[str]:
    """Give the machine's NIC an address and a route, and take its soft device away; rdmaNetns is exclusive, with the
    driver that can move."""
    netdev = kernel.netdev_of(rdma_device)
    with kernel.labs_rxe(rdma_device), kernel.rdma_netns("exclusive"):
        kernel.rdma("link", "delete", rdma_device)
        run(f"ip address add {ADDRESS} dev {netdev}")
        run(f"ip route add {ROUTE} dev {netdev}")
        yield netdev
        run(f"ip address delete {ADDRESS} dev {netdev}")
        kernel.rdma("link", "add", rdma_device, "type", "rxe", "netdev", netdev)


@pytest.fixture(scope="module")
def adapter(nic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adapter]:
    """Run a second daemon that reads the tree, with annotations of its own and faults that a test plants."""
    tmp_path = tmp_path_factory.mktemp("adapter")
    root, socket, faults = tmp_path / "sys", tmp_path / "nri.sock", Faults(tmp_path / "faults")
    tie(nic, root)
    own = {"--state-dir", "--control-socket", "--sysfs-root", "/sys", "--nri-socket", str(NRI_SOCKET)}
    command = (
        *(sys.executable, "-m", "tests.rig.faulty_daemon", str(faults.folder)),
        *(word for word in DAEMON[4:] if word not in own and str(STATE) not in word),
        *("--nri-socket", str(socket), "--sysfs-root", str(root), "--state-dir", "/run/nri-rdma-both"),
        *("--plugin-name", "both", "--plugin-index", "91", "--annotation-prefix", PREFIX),
    )
    with bound(NRI_SOCKET, socket), Server(command, RESULTS / "nri-rdma-both.log") as server:
        wait_until(lambda: server.has_logged("synchronized"), "the second daemon to be registered", seconds=60)
        yield Adapter(netdev=nic, daemon=server, faults=faults)


def tie(netdev: str, root: Path) -> None:
    """Write the tree: the machine's sysfs, but with one RDMA device only, whose function is the netdev's."""
    device = root / "class/infiniband" / DEVICE
    device.mkdir(parents=True)
    for folder, other in ((root, SYSFS), (root / "class", SYSFS / "class")):
        for entry in other.iterdir():
            if not (folder / entry.name).exists():
                (folder / entry.name).symlink_to(entry)
    for attribute in ("node_guid", "node_type", "ports"):
        (device / attribute).symlink_to(SYSFS / "class/infiniband" / DEVICE / attribute)
    (device / "device").symlink_to((SYSFS / "class/net" / netdev / "device").resolve())


def run(command: str) -> str:
    return subprocess.run(command.split(), stdout=subprocess.PIPE, text=True, check=True).stdout


@pytest.mark.outcome("both-moves")
def test_the_netdev_moves_first_and_comes_home_last(cri: Cri, adapter: Adapter) -> None:
    before = calm(adapter.netdev)
    with Uevents() as uevents:
        with verbs.pod(cri, POD, ASKS) as sandbox:
            container = verbs.start(cri, sandbox, "main")
            check_inside(cri, container, before.mac_of(adapter.netdev))
            assert adapter.netdev not in links()
            assert DEVICE not in kernel.rdma_devices()
            there = moves(uevents, adapter)
            assert there == [DEVICE_HOME, NETDEV_AWAY, DEVICE_AWAY]  # the first is the operator's: it makes the device
        assert moves(uevents, adapter)[len(there) :][:2] == [DEVICE_HOME, NETDEV_HOME]
    settles(before)


@pytest.mark.outcome("both-traffic")
def test_data_flows_over_the_device_of_such_an_adapter(cri: Cri, adapter: Adapter) -> None:
    asks = {f"{verbs.PREFIX}/pod": f"- {{mode: exclusive, match: {{device: {PEER}.0}}}}"}
    with verbs.pod(cri, POD, ASKS) as ours, verbs.pod(cri, PEER, asks) as other:
        # GID 1 is that of the IPv4 address; 0 is a link-local one, which no route leads to.
        sender, receiver = (
            verbs.Peer(sandbox=pod, container=verbs.start(cri, pod, "main"), device=f"{name}.0", gid_index=1)
            for name, pod in ((POD, ours), (PEER, other))
        )
        verbs.bandwidth(cri, receiver, sender)


@pytest.mark.outcome("both-moves")
def test_when_the_second_move_fails_the_netdev_is_home_before_the_next_attempt(cri: Cri, adapter: Adapter) -> None:
    """The RDMA device is made anew after its netdev has moved, as by a driver that resets its adapter: the kernel has
    no device of the number that was planned."""
    before, on_host = calm(adapter.netdev), configuration(adapter.netdev)
    adapter.faults.plant(f"after move-netdev {DEVICE}=pause")
    with Uevents() as uevents, verbs.pod(cri, POD, ASKS) as sandbox:
        adapter.faults.wait_paused(60)
        assert moves(uevents, adapter) == [DEVICE_HOME, NETDEV_AWAY]
        kernel.rdma("link", "delete", DEVICE)
        run(f"nsenter --net={cri.pod_status(sandbox).netns} rdma link add {DEVICE} type rxe netdev eth0")
        made_anew = len(moves(uevents, adapter))
        adapter.faults.plant(f"before plan={SECOND_ATTEMPT_WAITS}")
        adapter.faults.go()
        wait_until(lambda: moves(uevents, adapter)[made_anew:] == [NETDEV_HOME], "the netdev to be home", 30)
        wait_until(lambda: configuration(adapter.netdev) == on_host, "it to be as before", 30)
        assert moves(uevents, adapter)[made_anew:] == [NETDEV_HOME]
        assert adapter.daemon.has_logged(f"ATTACH-FAILED: move RDMA device {DEVICE} into the pod")
        check_inside(cri, verbs.start(cri, sandbox, "main"), before.mac_of(adapter.netdev))
        assert moves(uevents, adapter)[made_anew:] == [NETDEV_HOME, NETDEV_AWAY, DEVICE_AWAY]
    settles(before)


@pytest.mark.outcome("both-moves")
def test_a_daemon_killed_between_the_moves_begins_anew_and_returns_both(cri: Cri, adapter: Adapter) -> None:
    before = calm(adapter.netdev)
    adapter.faults.plant(f"before move-rdma-device {DEVICE}=kill")
    with Uevents() as uevents:
        with verbs.pod(cri, POD, ASKS) as sandbox:
            wait_until(lambda: has_ended(adapter.daemon), "the daemon to be killed", 60)
            assert moves(uevents, adapter) == [DEVICE_HOME, NETDEV_AWAY]
            assert DEVICE in kernel.rdma_devices()
            adapter.daemon.kill_and_start()
            anew = [DEVICE_HOME, NETDEV_AWAY, NETDEV_HOME, NETDEV_AWAY, DEVICE_AWAY]
            wait_until(lambda: moves(uevents, adapter) == anew, f"{anew}, not {moves(uevents, adapter)}", 60)
            check_inside(cri, verbs.start(cri, sandbox, "main"), before.mac_of(adapter.netdev))
        assert moves(uevents, adapter)[len(anew) :][:2] == [DEVICE_HOME, NETDEV_HOME]
    settles(before)


def has_ended(server: Server) -> bool:
    """Return whether a server's process has ended; nobody has waited for it yet."""
    return not Path(f"/proc/{server.pid}/fd/0").exists()


def moves(uevents: Uevents, adapter: Adapter) -> list[str]:
    """Return what has left the host and come to it so far, in the kernel's order. A netdev comes under its name in the
    pod, and is renamed then."""
    meanings = {
        f"remove net {adapter.netdev}": NETDEV_AWAY,
        f"add net {IN_POD}": NETDEV_HOME,
        f"remove infiniband {DEVICE}": DEVICE_AWAY,
        f"add infiniband {DEVICE}": DEVICE_HOME,
    }
    return [meanings[text] for event in uevents.so_far() if (text := str(event)) in meanings]


def configuration(netdev: str) -> list[str]:
    """Return how the host has configured a netdev; nothing while it is elsewhere."""
    if netdev not in links():
        return []
    shown = (run(f"ip {words} show dev {netdev}") for words in ("-o link", "-4 address", "-6 address", "route"))
    return list(shown)


def calm(netdev: str) -> kernel.NodeState:
    """Return the host's state once its NIC has a carrier, and has checked its IPv6 address for duplicates: both take
    seconds after a NIC has returned."""
    wait_until(lambda: "scope link" in run(f"ip -6 address show dev {netdev} -tentative"), "a calm host", seconds=30)
    return kernel.NodeState.take()


def settles(before: kernel.NodeState) -> None:
    """Wait until the host is as it was: the NIC's carrier needs seconds."""
    try:
        wait_until(lambda: not before.differences_to(kernel.NodeState.take()), "the host to be as before", seconds=30)
    except DeadlineError:  # which does not tell what is missing
        assert before.differences_to(kernel.NodeState.take()) == []


def check_inside(cri: Cri, container: Container, mac: str) -> None:
    """Check that both halves are in the pod: the NIC under its new name, and the RDMA device with an active port."""
    assert cri.exec(container, ["cat", f"/sys/class/net/{IN_POD}/address"]).stdout.strip() == mac
    shown = cri.exec(container, ["ibv_devinfo", "-d", DEVICE])
    assert shown.exit_code == 0, shown.stderr
    assert re.search(r"state:\s+PORT_ACTIVE", shown.stdout)
