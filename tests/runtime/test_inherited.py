"""A netdev works in a pod as it worked on the host, without one key of configuration: a node on a rail fabric."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.rig.cri import Cri, Sandbox
from tests.rig.daemon import Daemon
from tests.rig.railnode import (
    PEERS,
    RAILS,
    RailNode,
    Wire,
    behind,
    leaf_addresses,
    peer_addresses,
    rail_addresses,
)
from tests.rig.runtime import Runtime

pytestmark = [pytest.mark.root, pytest.mark.runtime]

POD = "rdma.noderesource.dev/pod"


@pytest.fixture(scope="module")
def rails() -> Iterator[RailNode]:
    """The node, one for a module: every test gives it back as it was."""
    with RailNode() as node:
        yield node


@pytest.fixture
def wire(rails: RailNode) -> Iterator[Wire]:
    """Leaves and peers."""
    with Wire(rails.netns) as wire:
        yield wire


@pytest.fixture
def rail_daemon(runtime: Runtime, rails: RailNode) -> Iterator[Daemon]:
    """A daemon on that node."""
    with Daemon(runtime, rails) as running:
        yield running


def netns_of(cri: Cri, pod: Sandbox) -> Path:
    """The pod's network namespace."""
    netns = cri.pod_status(pod).netns
    assert netns is not None
    return netns


@pytest.mark.usefixtures("rail_daemon")
def test_a_netdev_reaches_its_leaf_from_the_pod(host_equal: None, rails: RailNode, wire: Wire, cri: Cri) -> None:
    pod = cri.run_pod("one", annotations={POD: "- {match: {netdev: hca0}}"})
    cri.run_container(pod, "main")
    for target in (*leaf_addresses(0), *behind(0)):
        arrived = wire.send(netns_of(cri, pod), target)
        assert (arrived.link, arrived.mac) == ("p0", rails.node.netdevs[0].mac)
        assert arrived.source in rail_addresses(0)
    cri.delete_pod(pod)


@pytest.mark.usefixtures("rail_daemon")
def test_each_leaf_and_each_peer_is_reached_through_its_own_netdev(
    host_equal: None, rails: RailNode, wire: Wire, cri: Cri
) -> None:
    pod = cri.run_pod("all", annotations={POD: str(RAILS + PEERS)})
    cri.run_container(pod, "main")
    netns, macs = netns_of(cri, pod), [it.mac for it in rails.node.netdevs]
    for number in range(RAILS):
        for target in (*leaf_addresses(number), *behind(number)):
            arrived = wire.send(netns, target)
            assert (arrived.link, arrived.mac) == (f"p{number}", macs[number]), target
            assert arrived.source in rail_addresses(number)
    for number, peer in product(range(RAILS, RAILS + PEERS), range(PEERS)):
        for source, target in zip(rail_addresses(number), peer_addresses(peer), strict=True):
            arrived = wire.send(netns, target, source)
            assert (arrived.link, arrived.mac, arrived.source) == (f"p{number}", macs[number], source), target
    cri.delete_pod(pod)
