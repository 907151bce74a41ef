"""What the host has come to use since the node was read, and the kernel tells nobody: found by the attach, after the
sandbox was answered for."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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


@pytest.fixture
def resting(daemon: Daemon) -> Daemon:
    """The daemon when it has read the node for the last time, as long as nothing happens that the kernel tells."""
    await_rest(daemon.pid)
    return daemon


@contextmanager
def bound_to(*rails: str) -> Iterator[None]:
    """A socket of the host on each of these."""
    with ExitStack() as stack:
        for rail in rails:
            item = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            item.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, rail.encode())
            item.bind(("", 0))
        yield


def test_a_pod_gets_what_the_host_does_not_use(host_equal: None, node: Fabric, cri: Cri, resting: Daemon) -> None:
    with bound_to(*(rail for rail in RAILS if rail != RAILS[LEFT])):
        pod = cri.run_pod("any", annotations={POD: "1"})
        seen = look(cri, cri.run_container(pod, "main"))
    assert seen.macs["rdma0"] == described_mac(node, RAILS[LEFT])
    assert set(seen.nodes) == {f"uverbs{LEFT}", "rdma_cm"}
    assert "bound to it, 1 host socket (udp port" in resting.log, "it was found by the attach"
    cri.delete_pod(pod)


def test_where_nothing_else_is_free_the_container_is_told_and_the_next_sandbox_refused(
    host_equal: None, node: Fabric, cri: Cri, resting: Daemon
) -> None:
    asks = {POD: "- {match: {device: mlx5_3}}"}
    used = r"rail3 has, bound to it, 1 host socket \(udp port"
    with bound_to("rail3"):
        pod = cri.run_pod("told", annotations=asks)
        with pytest.raises(CriError, match=rf"nri-rdma: ATTACH-FAILED: .*{used}"):
            cri.run_container(pod, "main")
        with pytest.raises(CriError, match=rf"nri-rdma: DEVICE-IN-USE: .*{used}"):
            cri.run_pod("refused", annotations=asks)
        cri.delete_pod(pod)
    pod = cri.run_pod("given", annotations=asks)
    assert look(cri, cri.run_container(pod, "main")).macs["rdma0"] == described_mac(node, "rail3")
    cri.delete_pod(pod)
