"""What the host has come to use since the node was read, and the daemon is not told: found by the attach, after the
sandbox was answered for."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeAlias

import pytest

from bench.processes import await_rest
from tests.rig.cri import Cri, CriError
from tests.rig.daemon import Daemon
from tests.rig.expect import described_mac, look
from tests.rig.fabric import Fabric

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"
RAILS = tuple(f"rail{number}" for number in range(8))
LEFT = 5
NRI_RDMA = (sys.executable, "-m", "nri_rdma")
MULTIPATH = "198.18.0.0/15"


@contextmanager
def bound_to(*rails: str) -> Iterator[None]:
    """A socket of the host on each of these."""
    with ExitStack() as stack:
        for rail in rails:
            item = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            item.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, rail.encode())
            item.bind(("", 0))
        yield


@contextmanager
def paths_over(*rails: str) -> Iterator[None]:
    """A route of the host over all of these: the kernel takes it away whole when one leaves."""
    paths = [word for rail in rails for word in ("nexthop", "dev", rail)]
    subprocess.run(["ip", "route", "add", MULTIPATH, *paths], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", MULTIPATH], check=True)


Use: TypeAlias = Callable[..., AbstractContextManager[None]]
uses = pytest.mark.parametrize(
    ("use", "told"),
    [
        (bound_to, r"{} has, bound to it, 1 host socket \(udp port"),
        (paths_over, rf"{{}} is used by the multipath route {MULTIPATH}"),
    ],
    ids=["a socket", "a route"],
)


@pytest.fixture
def resting(daemon: Daemon) -> Daemon:
    """The daemon when it has read the node for the last time, as long as nothing happens that it hears of."""
    await_rest(daemon.pid)
    return daemon


@uses
def test_a_pod_gets_what_the_host_does_not_use(
    host_equal: None, node: Fabric, cri: Cri, resting: Daemon, use: Use, told: str
) -> None:
    with use(*(rail for rail in RAILS if rail != RAILS[LEFT])):
        pod = cri.run_pod("any", annotations={POD: "1"})
        seen = look(cri, cri.run_container(pod, "main"))
        assert seen.macs["rdma0"] == described_mac(node, RAILS[LEFT])
        assert set(seen.nodes) == {f"uverbs{LEFT}", "rdma_cm"}
        assert re.search(told.format("rail0"), resting.log), "it was found by the attach"
        cri.delete_pod(pod)


@uses
def test_where_nothing_else_is_free_the_container_is_told_and_the_next_sandbox_refused(
    host_equal: None, node: Fabric, cri: Cri, resting: Daemon, use: Use, told: str
) -> None:
    asks = {POD: "- {match: {device: mlx5_3}}"}
    used = told.format("rail3")
    with use("rail3", "rail4"):
        pod = cri.run_pod("told", annotations=asks)
        with pytest.raises(CriError, match=rf"nri-rdma: ATTACH-FAILED: .*{used}"):
            cri.run_container(pod, "main")
        with pytest.raises(CriError, match=rf"nri-rdma: DEVICE-IN-USE: .*{used}"):
            cri.run_pod("refused", annotations=asks)
        cri.delete_pod(pod)
    pod = cri.run_pod("given", annotations=asks)
    assert look(cri, cri.run_container(pod, "main")).macs["rdma0"] == described_mac(node, "rail3")
    cri.delete_pod(pod)


def test_a_device_that_can_only_be_shared_is_told_as_such(
    host_equal: None, node: Fabric, cri: Cri, daemon: Daemon
) -> None:
    with paths_over("rail3", "rail4"):
        wide = {**os.environ, "COLUMNS": "200"}
        told = subprocess.check_output([*NRI_RDMA, "inventory", "--sysfs-root", node.sysfs], text=True, env=wide)
        pod = cri.run_pod("shared", annotations={POD: "- {match: {device: mlx5_3}, mode: shared}"})
        assert set(look(cri, cri.run_container(pod, "main")).nodes) == {"uverbs3", "rdma_cm"}
        cri.delete_pod(pod)
    assert f"rail3 is used by the multipath route {MULTIPATH} (can be shared)" in told
