"""How often a node's daemon writes its slices: never while nothing changes, seldom while a link flaps.

What was written is what the API server's own metrics say. NRI_RDMA_IDLE_S is how long nothing changes, in seconds.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, start
from tests.cluster.test_claims import (
    CONFIG,
    EIGHT,
    claim_spec,
    claiming,
    device_class,
    make,
    published,
    slices,
    template,
)
from tests.cluster.test_many_nodes import writes
from tests.rig.deadline import wait_until

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
IDLE_S = float(os.environ.get("NRI_RDMA_IDLE_S", "30"))
FLAP_S, FLAP_PAUSE_S = 20.0, 0.2
QUIET_S = 5.0
"""Between two writes, as docs/claims.md says."""
STATE = "rdma.noderesource.dev/state"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class(), template("one", claim_spec({"nic": {}})))
    return cluster


def versions(cluster: Cluster) -> list[tuple[str, int, int]]:
    """The version of each slice for the API server and for the scheduler."""
    return [
        (it["metadata"]["resourceVersion"], it["metadata"]["generation"], it["spec"]["pool"]["generation"])
        for it in slices(cluster)
    ]


def device_with(cluster: Cluster, netdev: str) -> dict[str, Any]:
    """The attributes of the device with this netdev."""
    (found,) = [
        device["attributes"]
        for it in slices(cluster)
        for device in it["spec"]["devices"]
        if device["attributes"].get("rdma.noderesource.dev/ifName") == {"string": netdev}
    ]
    return dict(found)


@pytest.mark.timeout(IDLE_S + 300)
def test_nothing_is_written_while_nothing_changes_also_not_of_a_device_that_a_pod_has(served: Cluster) -> None:
    start(served, claiming("one", {"rdma": "one"}))
    time.sleep(2 * QUIET_S)  # what the pod's start has changed would be written by now
    before, known = writes(served), versions(served)
    time.sleep(IDLE_S)
    print(f"nothing changes for {IDLE_S:.0f} s: {writes(served) - before} writes, slices {versions(served)}")
    assert (writes(served), versions(served)) == (before, known)
    delete(served, "one")


def test_a_flapping_link_is_written_at_most_once_in_five_seconds_and_as_it_is_at_last(served: Cluster) -> None:
    netdev = EIGHT.netdevs[0].name
    machine = served.nodes["n1"].machine
    wait_until(lambda: device_with(served, netdev)[STATE] == {"string": "up"}, "the link to be up")
    time.sleep(2 * QUIET_S)
    before = writes(served)
    began = time.monotonic()
    number = 0
    while time.monotonic() < began + FLAP_S:
        for to in ("down", "up"):
            machine.run("ip", "link", "set", "dev", netdev, to)
            time.sleep(FLAP_PAUSE_S)
        number += 1
    took = time.monotonic() - began
    machine.run("ip", "link", "set", "dev", netdev, "down")
    wait_until(lambda: device_with(served, netdev)[STATE] == {"string": "down"}, "the last state", 2 * QUIET_S)
    made = writes(served) - before
    took = time.monotonic() - began
    print(f"a link flaps {number} times, {took:.0f} s: {made} writes")
    assert 2 <= made <= took / QUIET_S + 1
    machine.run("ip", "link", "set", "dev", netdev, "up")
    wait_until(lambda: device_with(served, netdev)[STATE] == {"string": "up"}, "the link to be up", 2 * QUIET_S)
