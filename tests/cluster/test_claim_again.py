"""A claim outlives its pod: given up while it waited for a device, it has what it is allocated the next time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, events, start
from tests.cluster.test_claims import (
    CONFIG,
    EIGHT,
    allocated,
    claim_spec,
    claiming,
    device_class,
    mac_of,
    macs,
    make,
    named,
    published,
    slices,
    verbs,
)
from tests.cluster.test_slice_writes import device_with
from tests.rig.deadline import wait_until

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
FIRST, THIRD = EIGHT.netdevs[0].name, EIGHT.netdevs[2].name
KUBELET_S = 45
"""How long the kubelet waits for an answer."""


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class())
    return cluster


def of_devices(*names: str) -> dict[str, Any]:
    """A request for one of these RDMA devices."""
    told = ", ".join(f'"{it}"' for it in names)
    expression = f'device.attributes["rdma.noderesource.dev"].rdmaDevice in [{told}]'
    return {"nic": {"selectors": [{"cel": {"expression": expression}}]}}


def with_claims(name: str, *claims: str) -> dict[str, Any]:
    """A pod with these claims."""
    asked = claiming(name, dict.fromkeys(claims, ""))
    asked["spec"]["resourceClaims"] = [{"name": it, "resourceClaimName": it} for it in claims]
    return asked


def test_a_claim_whose_pod_was_given_up_while_it_waited_has_the_device_of_its_next_allocation(served: Cluster) -> None:
    machine = served.nodes["n1"].machine
    for name, devices in (("stuck", ["mlx5_2"]), ("kept", ["mlx5_0", "mlx5_1"]), ("next", ["mlx5_0"])):
        make(served, named(name, claim_spec(of_devices(*devices))))
    machine.run("ip", "netns", "add", "aside")
    # The next write of the slice comes 5 s after this one: the scheduler gives devices that just lost their netdev.
    machine.run("ip", "link", "set", FIRST, "mtu", "4100")
    wait_until(lambda: device_with(served, FIRST)["rdma.noderesource.dev/mtu"] == {"int": 4100}, "the write", 20)
    for netdev in (FIRST, THIRD):
        machine.run("ip", "link", "set", netdev, "netns", "aside")
    make(served, with_claims("gone", "stuck", "kept"))
    wait_until(lambda: is_allocated(served), "the allocation", 20)
    time.sleep(KUBELET_S + 2)  # the kubelet has given its call up
    served.kubectl("delete", "pod", "gone", "--wait=true", "--timeout=60s")
    for netdev in (FIRST, THIRD):
        machine.run("ip", "-n", "aside", "link", "set", netdev, "netns", "1")
        machine.run("ip", "link", "set", netdev, "up")
    wait_until(lambda: FIRST in str(slices(served)), "the device to be back", 30)
    time.sleep(5)  # a call that goes on would write its spec now
    start(served, with_claims("other", "next"))
    start(served, with_claims("again", "kept"))
    assert (allocated(served, "other", "nic"), verbs(served, "other")) == ([0], [0])
    assert (allocated(served, "again", "nic"), verbs(served, "again")) == ([1], [1]), events(served, "again")
    assert mac_of(1) in macs(served, "again")
    assert mac_of(0) not in macs(served, "again")
    for name in ("other", "again"):
        delete(served, name)


def is_allocated(cluster: Cluster) -> bool:
    """Whether the claim has its first device."""
    return bool(cluster.get("resourceclaim", "kept").get("status", {}).get("allocation"))
