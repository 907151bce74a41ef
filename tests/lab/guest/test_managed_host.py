"""A host whose NICs udev and networkd manage is as before when a pod gives one back, and stays so."""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
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

pytestmark = [pytest.mark.machine("systemd"), pytest.mark.outcome("managed-host")]
NICS = ("fabric0", "eth2")  # one that udev renames, and one that keeps the kernel's name: guest/etc/systemd/network
RUN = Path("/run/lab/managed")
PREFIX = "managed.example"  # the other daemon of these tests has the usual one
ASKS = (
    "name: nic{number}, devices: [uverbs], mode: exclusive, "
    "interface: {{name: rdma{number}, mtu: 1400, addresses: [10.9.{number}.2/24]}}"
)
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
RETURNS = 2
"""Once from what the host made of it at boot, once from what came home."""


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


def test_managed_nics_return_and_return_again_and_the_host_stays_as_before(cri: Cri, managed: Server) -> None:
    before = calm()
    for _ in range(RETURNS):
        give_and_take_back(cri, len(NICS))
        settles(before)
    stays(before)


def test_what_was_changed_by_hand_comes_back_too(cri: Cri, managed: Server) -> None:
    """udev and networkd do not know of it, and make of a NIC that comes home what they made of it at boot."""
    for words in BY_HAND:
        subprocess.run(["ip", *words.split()], check=True)
    before = calm()
    for _ in range(RETURNS):
        give_and_take_back(cri, 1)
        settles(before)
    stays(before)


def calm() -> ManagedState:
    """The host once nobody is busy with it: two looks a second apart agree."""

    def look() -> ManagedState | None:
        first = ManagedState.take(NICS)
        time.sleep(1)
        return first if first.differences_to(ManagedState.take(NICS)) == [] else None

    return wait_until(look, "a calm host", SETTLES_S)


def give_and_take_back(cri: Cri, count: int) -> None:
    """A pod has so many of the devices alone for a moment, and configures their netdevs otherwise."""
    asks = (f"- {{match: {{device: rail{number}}}, {ASKS.format(number=number)}}}\n" for number in range(count))
    sandbox = cri.run_pod(f"managed-{uuid.uuid4().hex[:8]}", annotations={f"{PREFIX}/pod": "".join(asks)})
    verbs.start(cri, sandbox, "main")
    check_inside(cri, sandbox, count)
    cri.delete_pod(sandbox)


def check_inside(cri: Cri, sandbox: Sandbox, count: int) -> None:
    """The netdevs are in the pod as they were asked for."""
    inside = hoststate.take(cri.pod_status(sandbox).netns)
    links = {link["ifname"]: link for link in inside.links.values()}
    for number in range(count):
        link = links[f"rdma{number}"]
        assert link["mtu"] == 1400
        assert "UP" in link["flags"]
        assert f"10.9.{number}.2/24 of rdma{number}" in inside.addresses


def settles(before: ManagedState) -> None:
    """The host becomes as it was: kernel, udev and networkd need their time for it."""
    try:
        wait_until(lambda: not before.differences_to(ManagedState.take(NICS)), "the host to settle", SETTLES_S)
    except DeadlineError:  # which does not tell what is missing
        assert before.differences_to(ManagedState.take(NICS)) == []


def stays(before: ManagedState) -> None:
    """And so it is whenever somebody looks."""
    end = time.monotonic() + STAYS_S
    while time.monotonic() < end:
        assert before.differences_to(ManagedState.take(NICS)) == []
        time.sleep(0.5)
