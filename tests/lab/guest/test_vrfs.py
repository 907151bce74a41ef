"""Pods that reach each other through VRFs, on a real containerd: the machine of the other tests may have none."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lab.guest.conftest import NRI_SOCKET, RESULTS, STATE
from tests.lab.guest.process import Server
from tests.lab.guest.test_nldev import run
from tests.rig import hoststate
from tests.rig.cri import Cri
from tests.rig.daemon import PROJECT
from tests.rig.deadline import DeadlineError, wait_until
from tests.rig.fabric import Fabric
from tests.runtime.test_peer_behaviours import described, have_pods_in_vrfs_reach_each_other

pytestmark = pytest.mark.machine("sriov")

FORWARD = Path("/proc/sys/net/ipv4/ip_forward")
"""CNI turns it on at the first pod, and with it the kernel turns LRO off on all links."""


@pytest.fixture
def node() -> Iterator[Fabric]:
    """A described node with links on one bridge, beside the machine's own."""
    run("modprobe vrf")
    FORWARD.write_text("1")
    with Fabric(described()) as made:
        yield made


@pytest.fixture
def daemon(cri: Cri, node: Fabric) -> Iterator[Server]:
    """A daemon for it whose rule grants every right. No other one runs on this machine."""
    command = (
        *(sys.executable, "-m", "nri_rdma", "run", "--nri-socket", str(NRI_SOCKET), "--memlock", "unlimited"),
        *("--sysfs-root", str(node.sysfs), "--dev-root", str(node.dev), "--proc-root", str(node.proc)),
        *("--state-dir", str(STATE), "--config", str(PROJECT / "tests/rig/all_rights.toml")),
    )
    with Server(command, RESULTS / "nri-rdma-vrfs.log") as server:
        wait_until(lambda: server.has_logged("synchronized"), "the daemon to be told the pods", seconds=60)
        yield server


@pytest.mark.usefixtures("daemon")
def test_pods_in_vrfs_reach_each_other_and_the_host_is_as_before(cri: Cri) -> None:
    before = hoststate.take()
    have_pods_in_vrfs_reach_each_other(cri)
    with suppress(DeadlineError):
        wait_until(lambda: not hoststate.difference(before, hoststate.take()), "the host as before", seconds=30)
    assert hoststate.difference(before, hoststate.take()) == []
