"""Claims of our own driver: the scheduler allocates, the kubelet has them prepared, and nri-rdma brings the devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, execute, pod, start
from tests.cluster.test_shares import devices
from tests.rig.cache import PROJECT
from tests.rig.deadline import wait_until
from tests.rig.node import load

DRIVER = "rdma.noderesource.dev"
CONFIG = f"""
guard_hook = "{PROJECT}/hooks/nri-rdma-hook"
node_name = "n1"
kubeconfig = "KUBECONFIG"

[pools.nics]
modes = ["exclusive", "shared"]
door = "claims"
"""
EIGHT = load("eight")


def slices(cluster: Cluster) -> list[dict[str, Any]]:
    """Our ResourceSlices."""
    return [it for it in cluster.get("resourceslices")["items"] if it["spec"]["driver"] == DRIVER]


def published(cluster: Cluster) -> list[str]:
    """The devices in our slices."""
    return [device["name"] for it in slices(cluster) for device in it["spec"].get("devices") or ()]


def make(cluster: Cluster, *objects: Mapping[str, Any]) -> None:
    """Create these objects."""
    for it in objects:
        cluster.kubectl("create", "-f", "-", given=it)


def device_class(name: str = "nics", **more: object) -> dict[str, Any]:
    """A DeviceClass for all our devices."""
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [selector], **more},
    }


def claim_spec(
    requests: Mapping[str, Mapping[str, Any]], parameters: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The spec of a claim: by request what it asks `exactly`, beside the class."""
    asked = [{"name": name, "exactly": {"deviceClassName": "nics", **it}} for name, it in requests.items()]
    config = [] if parameters is None else [{"opaque": {"driver": DRIVER, "parameters": dict(parameters)}}]
    return {"devices": {"requests": asked, "config": config}}


def template(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """A ResourceClaimTemplate."""
    kind = "ResourceClaimTemplate"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": {"spec": spec}}


def claiming(name: str, claims: Mapping[str, str], containers: Sequence[Mapping[str, Any]] = ({},)) -> dict[str, Any]:
    """A pod with claims from templates, by their names in the pod; each container has all that it does not choose."""
    listed = [{"name": it} for it in claims]
    return pod(
        name,
        containers=[{"resources": {"claims": listed}, **it} for it in containers],
        resourceClaims=[{"name": it, "resourceClaimTemplateName": made} for it, made in claims.items()],
    )


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class())
    return cluster


def test_a_pod_has_exactly_the_device_that_its_claim_was_allocated(served: Cluster) -> None:
    make(served, template("one", claim_spec({"nic": {}}, {"interface": {"name": "rail0", "mtu": 4000}})))
    start(served, claiming("one", {"rdma": "one"}))
    (claim,) = served.get("resourceclaims")["items"]
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    (index,) = [
        number
        for number, it in enumerate(EIGHT.rdma)
        if result["device"] == "pci-" + str(it.function).replace(":", "-").replace(".", "-")
    ]
    assert [it for it in devices(served, "one") if it.startswith("uverbs")] == [f"uverbs{index}"]
    (netdev,) = [it for it in EIGHT.netdevs if it.function == EIGHT.rdma[index].function]
    assert execute(served, "one", "cat /sys/class/net/rail0/address /sys/class/net/rail0/mtu").split() == [
        netdev.mac,
        "4000",
    ]
    assert "RDMA_DEVICES_RDMA_NIC=" in execute(served, "one", "env")
    assert len(published(served)) == 8  # also what is moved away
    delete(served, "one")
