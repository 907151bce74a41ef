"""Data between two pods that share one RoCE device.

What works on soft RoCE: both pods use the device's own GID, which belongs to the host's netdev, while each pod keeps a
network namespace and an interface of its own (the CNI's, here ptp): over that the two programs find each other (TCP),
and the data goes from the device to itself. Neither pod needs the host's network, nor an address on the device's
netdev. GIDs of macvlan children appear too, but carry no data on rxe: it finds its device by the receiving netdev.
"""

import re

import pytest

from tests.lab.guest import verbs
from tests.lab.guest.process import Server
from tests.rig.cri import Cri

PORT = 18515
SIZE, COUNT = 65536, 50


@pytest.mark.outcome("shared-traffic")
def test_two_pods_that_share_a_device_exchange_data(cri: Cri, daemon: Server, rdma_device: str) -> None:
    ask = verbs.asks(f"mode: shared, match: {{device: {rdma_device}}}")
    send = ["ib_send_bw", "-d", rdma_device, "-x", "0", "-n", str(COUNT), "-s", str(SIZE), "-p", str(PORT), "-F"]
    with verbs.pod(cri, "receiver", ask) as receivers, verbs.pod(cri, "sender", ask) as senders:
        receiver, sender = (verbs.start(cri, pod, "main") for pod in (receivers, senders))
        listening = verbs.Program(cri, receiver, send)
        verbs.wait_until_listening(cri.container_status(receiver).pid, PORT)
        sent = cri.exec(sender, [*send, cri.pod_status(receivers).ip], seconds=60)
        received = listening.end()
    assert (sent.exit_code, received.exit_code) == (0, 0), f"{sent}\n{received}"
    row = re.search(rf"^\s*{SIZE}\s+{COUNT}\s+\S+\s+([\d.]+)", sent.stdout, re.MULTILINE)
    assert row, sent.stdout
    print(f"{row.group(1)} MiB/s")
    assert float(row.group(1)) > 0
