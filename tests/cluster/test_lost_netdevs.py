"""A NIC whose netdev is away is not for new claims: the scheduler would allocate it first, again and again."""

from __future__ import annotations

import json
from signal import SIGHUP
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import START_S, events, phase, runs
from tests.cluster.test_claims import (
    CONFIG as EVERY,
)
from tests.cluster.test_claims import (
    EIGHT,
    claim_spec,
    claiming,
    claims_of,
    device_class,
    make,
    published,
    template,
    verbs,
)
from tests.rig.deadline import wait_until

CONFIG = f'{EVERY}select = {{ device = ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"] }}\n'
LOST, LEFT = (0, 1), (2, 3)
"""The numbers of the devices that lose their netdevs, and of the others."""
PODS = [f"p{number}" for number in range(4)]
WRITE_S = 15.0
"""Slices are written at most once in 5 s."""


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's four devices are published, and two of them have lost their netdevs."""
    wait_until(lambda: len(published(cluster)) == 4, "the node's ResourceSlice", 30)
    make(cluster, device_class(), template("one", claim_spec({"nic": {}})))
    for number in LOST:
        cluster.nodes["n1"].machine.run("ip", "link", "delete", EIGHT.netdevs[number].name)
    return cluster


def test_claims_get_the_nics_that_have_their_netdevs_and_the_others_wait_for_the_scheduler(served: Cluster) -> None:
    wait_until(lambda: len(published(served)) == 2, "two devices in the slice", WRITE_S)
    for name in PODS:
        served.kubectl("create", "-f", "-", given=claiming(name, {"rdma": "one"}))
    served.wait("two pods", lambda: len(running(served)) == 2, START_S)
    having = running(served)
    assert sorted(number for name in having for number in verbs(served, name)) == [*LEFT]
    for name in (it for it in PODS if it not in having):
        assert (phase(served, name), allocations(served, name)) == ("Pending", [])
        assert not [it for it in events(served, name) if "nri-rdma" in it]


def running(cluster: Cluster) -> list[str]:
    """The pods whose container runs."""
    return [name for name in PODS if runs(cluster, name)]


def allocations(cluster: Cluster, name: str) -> list[Any]:
    """What the claims of a pod were allocated."""
    return [it["status"]["allocation"] for it in claims_of(cluster, name) if "allocation" in it.get("status", {})]


def test_status_says_which_device_is_not_published_and_what_to_do(served: Cluster) -> None:
    told = served.nodes["n1"].nri_rdma("status")
    print(told)
    assert "WARNING" in next(line for line in told.splitlines() if "mlx5_0, mlx5_1" in line)
    assert "mlx5_0, mlx5_1" in served.nodes["n1"].nri_rdma("status", "--check", fails=True)


def test_a_netdev_that_comes_back_brings_its_device_back_into_the_slice(served: Cluster) -> None:
    served.nodes["n1"].machine.programs["hardware"].send(SIGHUP)
    served.wait("all pods", lambda: len(running(served)) == 4, START_S)
    found = {number for name in PODS for number in verbs(served, name)}
    print(json.dumps({name: verbs(served, name) for name in PODS}))
    assert found == {*LOST, *LEFT}
