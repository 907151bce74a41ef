"""Pods that ask at the same time for one device."""

from __future__ import annotations

import threading

import pytest

from nri_rdma.errors import NriRdmaError
from nri_rdma.model.pod import Pod
from tests.rig.deadline import wait_until
from tests.unit.rigs.inside_daemon import InsideDaemon

PODS, ROUNDS = 6, 6
ASKED = {"rdma.noderesource.dev/pod": "{match: {device: mlx5_3}, mode: exclusive}"}


@pytest.mark.parametrize("round_number", range(ROUNDS))
def test_of_pods_that_ask_at_once_for_one_device_one_has_it(daemon: InsideDaemon, round_number: int) -> None:
    before = sorted(link.name for link in daemon.world.host.links.values())
    served, refused = list[Pod](), list[str]()
    together = threading.Barrier(PODS)

    def start(number: int) -> None:
        together.wait()
        try:
            served.append(daemon.start_pod(f"pod-{round_number}-{number}", ASKED))
        except NriRdmaError as error:
            refused.append(str(error.code))

    threads = [threading.Thread(target=start, args=(number,)) for number in range(PODS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(served), len(refused)) == (1, PODS - 1)
    assert set(refused) <= {"DEVICE-HELD", "DEVICES-EXHAUSTED", "DEVICE-IN-USE"}
    (winner,) = served
    assert daemon.edits(winner, ASKED, "main").char_devices
    daemon.stop_pod(winner)
    wait_until(lambda: sorted(link.name for link in daemon.world.host.links.values()) == before, "the rail's return")
