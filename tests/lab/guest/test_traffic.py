"""Data between two pods that share one RoCE device.

What works on soft RoCE: both pods use the device's own GID, which belongs to the host's netdev, while each pod keeps a
network namespace and an interface of its own (the CNI's, here ptp): over that the two programs find each other (TCP),
and the data goes from the device to itself. Neither pod needs the host's network, nor an address on the device's
netdev. GIDs of macvlan children appear too, but carry no data on rxe: it finds its device by the receiving netdev.
"""

import pytest

from tests.lab.guest import verbs
from tests.lab.guest.process import Server
from tests.rig.cri import Cri


@pytest.mark.outcome("shared-traffic")
def test_two_pods_that_share_a_device_exchange_data(cri: Cri, daemon: Server, rdma_device: str) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    with verbs.pod(cri, "receiver", ask) as receivers, verbs.pod(cri, "sender", ask) as senders:
        receiver, sender = (
            verbs.Peer(sandbox=pod, container=verbs.start(cri, pod, "main"), device=rdma_device, gid_index=0)
            for pod in (receivers, senders)
        )
        verbs.bandwidth(cri, receiver, sender)
