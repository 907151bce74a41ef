"""What the host's netdevs carry, read without privileges: here of the loopback, which every machine has."""

import socket
from dataclasses import replace

from nri_rdma.commands.explain.host_network import read_host_network
from nri_rdma.model.device import Netdev, Node, RdmaNetns
from tests.unit.attach.builders import make_device

LOOPBACK = Netdev(name="lo", ifindex=socket.if_nametoindex("lo"), mac="00:00:00:00:00:00", mtu=65536, up=True)


def _node(netdev: Netdev) -> Node:
    device = replace(make_device("mlx5_0", []), netdevs=(netdev,))
    return Node(devices=(device,), gpus=(), rdma_cm=None, rdma_netns=RdmaNetns.NONE, rdma_cgroup=False)


def test_the_netdevs_that_are_here_are_read_with_the_rules() -> None:
    found = read_host_network(_node(LOOPBACK))
    assert found is not None
    assert set(found.carried) == {LOOPBACK.ifindex}
    assert {(4, 254), (4, 255)} <= {(it.rule.version, it.rule.table) for it in found.rules}


def test_of_a_netdev_that_is_another_nothing_is_told() -> None:
    assert read_host_network(_node(replace(LOOPBACK, mac="02:00:00:00:00:01"))) is None
