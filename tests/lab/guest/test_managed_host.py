"""A host whose NICs udev and networkd manage is as before when a pod gives one back, and stays so."""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.guest import verbs
from tests.lab.guest.conftest import NRI_SOCKET, RESULTS
from tests.lab.guest.managed import ManagedState, described
from tests.lab.guest.process import Server
from tests.rig import hoststate
from tests.rig.cri import Cri, Sandbox
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.systree import build_tree

pytestmark = [pytest.mark.machine("systemd"), pytest.mark.outcome("managed-host"), pytest.mark.timeout(300)]
NICS = ("fabric0", "eth2")  # one that udev renames, and one that keeps the kernel's name: guest/etc/systemd/network
RUN = Path("/run/lab/managed")
PREFIX = "managed.example"  # the other daemon of these tests has the usual one
ASKS = "devices: [uverbs], mode: exclusive, interface: {name: rdma0, mtu: 1400, addresses: [10.9.0.2/24]}"
DAEMON = (
    *(sys.executable, "-m", "nri_rdma", "run", "--nri-socket", str(NRI_SOCKET), "--allow-default-pool"),
    *("--sysfs-root", str(RUN / "sys"), "--dev-root", "/dev", "--memlock", "unlimited", "--plugin-name", "managed"),
    *("--state-dir", str(RUN / "state"), "--annotation-prefix", PREFIX),
)
BY_HAND = (
    "link set fabric0 mtu 2200",
    "link set fabric0 txqueuelen 800",
    "link property add dev fabric0 altname by-hand",
    "address add 198.51.100.77/24 dev fabric0",
    "address add 2001:db8:1::77/64 dev fabric0",
    "route add 203.0.116.0/24 via 198.51.100.1 dev fabric0",
)
SETTLES_S = 20  # a carrier takes 3 s to come back, IPv6's look for duplicates 2 more; emulation makes it longer
STAYS_S = 10


@pytest.fixture(scope="module")
def managed(containerd: Server, cri: Cri) -> Iterator[Server]:
    """A daemon of a described node on the machine's own NICs."""
    indexes = {name: int(Path(f"/sys/class/net/{name}/ifindex").read_text()) for name in NICS}
    build_tree(described(NICS), RUN / "sys", indexes)
    cri.delete_pod(cri.run_pod("first"))  # CNI turns forwarding on, for good
    connected = r"plugin \S*-managed\S* connected(?: and|\"$)"
    with Server(DAEMON, RESULTS / "nri-rdma-managed.log") as server:
        wait_until(lambda: containerd.has_logged(connected), "the daemon to be registered", seconds=60)
        yield server


@pytest.mark.parametrize("number", range(len(NICS)), ids=NICS)
def test_a_managed_nic_returns_three_times_and_the_host_stays_as_before(cri: Cri, managed: Server, number: int) -> None:
    before = calm()
    for _ in range(3):
        give_and_take_back(cri, f"rail{number}")
        settles(before)
    stays(before)


def test_what_was_changed_by_hand_comes_back_too(cri: Cri, managed: Server) -> None:
    """udev and networkd do not know of it, and make of a NIC that comes home what they made of it at boot."""
    for words in BY_HAND:
        subprocess.run(["ip", *words.split()], check=True)
    before = calm()
    for _ in range(3):
        give_and_take_back(cri, "rail0")
        settles(before)
    stays(before)


def calm() -> ManagedState:
    """The host once nobody is busy with it: two looks a second apart agree."""

    def look() -> ManagedState | None:
        first = ManagedState.take(NICS)
        time.sleep(1)
        return first if first.differences_to(ManagedState.take(NICS)) == [] else None

    return wait_until(look, "a calm host", SETTLES_S)


def give_and_take_back(cri: Cri, device: str) -> None:
    """A pod has the device alone for a moment, and configures its netdev otherwise."""
    annotations = {f"{PREFIX}/pod": f"- {{match: {{device: {device}}}, {ASKS}}}"}
    sandbox = cri.run_pod(f"managed-{uuid.uuid4().hex[:8]}", annotations=annotations)
    verbs.start(cri, sandbox, "main")
    check_inside(cri, sandbox)
    cri.delete_pod(sandbox)


def check_inside(cri: Cri, sandbox: Sandbox) -> None:
    """The netdev is in the pod as it was asked for."""
    inside = hoststate.take(cri.pod_status(sandbox).netns)
    (link,) = (it for it in inside.links.values() if it["ifname"] == "rdma0")
    assert link["mtu"] == 1400
    assert "UP" in link["flags"]
    assert "10.9.0.2/24 of rdma0" in inside.addresses


def settles(before: ManagedState) -> None:
    """The host becomes as it was: kernel, udev and networkd need their time for it."""
    with suppress(DeadlineError):
        wait_until(lambda: not before.differences_to(ManagedState.take(NICS)), "the host to settle", SETTLES_S)
    assert before.differences_to(ManagedState.take(NICS)) == []


def stays(before: ManagedState) -> None:
    """And so it is whenever somebody looks."""
    end = time.monotonic() + STAYS_S
    while time.monotonic() < end:
        assert before.differences_to(ManagedState.take(NICS)) == []
        time.sleep(0.5)
