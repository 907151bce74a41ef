"""What the kubelet tells of claims in ways that would give a container too much or nothing, as it is seen here, and
what containers have nevertheless."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import delete, execute, pod, start
from tests.cluster.programs import MINOR
from tests.cluster.share_driver import share_slice
from tests.cluster.test_claims import (
    CONFIG,
    DRIVER,
    NAMES,
    allocated,
    claim_spec,
    claiming,
    claims_of,
    device_class,
    make,
    needs_1_36,
    published,
    template,
    verbs,
)
from tests.rig.deadline import wait_until

__all__ = ["CONFIG"]  # the fixture of the cluster reads it in this module
RESOURCE = "rdma/rdma_shared_device_a"
GPU = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Cluster:
    """The cluster, when the node's devices are published."""
    wait_until(lambda: len(published(cluster)) == 8, "the node's ResourceSlice", 30)
    make(cluster, device_class(extendedResourceName=RESOURCE))
    make(cluster, template("parts", claim_spec({"left": {"count": 3}, "right": {}}, {"mode": "shared"})))
    cluster.nodes["n1"].start_gpus(GPU)
    return cluster


def told(cluster: Cluster, name: str) -> dict[str, dict[str, Any]]:
    """What PodResources says of a pod's containers, by their names."""
    asked = ("-m", "tests.cluster.podresources", "default", name)
    return {it["name"]: it for it in json.loads(cluster.nodes["n1"].machine.run(sys.executable, *asked))}


def test_cdi_devices_accumulate_over_a_claim_and_each_container_has_its_own(served: Cluster) -> None:
    left, right = ({"resources": {"claims": [{"name": "rdma", "request": it}]}} for it in ("left", "right"))
    start(served, claiming("parts", {"rdma": "parts"}, [left, right]))
    for container in ("c0", "c1"):  # the whole claim for each, though each names one request
        (claim,) = told(served, "parts")[container]["claims"]
        assert [it["driver"] for it in claim["devices"]] == [DRIVER] * 4
        numbers = [len(it["cdi"]) for it in claim["devices"]]
        assert numbers == sorted(numbers), numbers
        assert numbers[-1] == 2, "the last device is told with the CDI devices of all requests"
    assert sorted(verbs(served, "parts", "c0")) == sorted(allocated(served, "parts", "left"))
    assert verbs(served, "parts", "c1") == allocated(served, "parts", "right")
    delete(served, "parts")


@needs_1_36
def test_a_claim_of_an_extended_resource_is_told_as_a_claim_and_the_container_has_its_devices(served: Cluster) -> None:
    start(served, pod("limits", containers=[{"resources": {"limits": {RESOURCE: 2}}}, {}]))
    said = told(served, "limits")
    (claim,) = said["c0"]["claims"]
    assert claim["name"].startswith("limits-extended-resources-")
    assert said["c0"]["devices"] == []
    assert len(verbs(served, "limits")) == 2
    assert verbs(served, "limits", "c1") == []
    delete(served, "limits")


def test_ids_of_device_plugins_are_told_one_by_one_and_the_claim_beside_them_is_served(served: Cluster) -> None:
    asked = {"resources": {"limits": {GPU: 2}, "claims": [{"name": "rdma", "request": "right"}]}}
    start(served, claiming("gpus", {"rdma": "parts"}, [asked]))
    devices = told(served, "gpus")["c0"]["devices"]
    assert [(it["resource"], len(it["ids"]), it["has_topology"]) for it in devices] == [(GPU, 1, True)] * 2
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in execute(served, "gpus", "env")
    assert verbs(served, "gpus") == allocated(served, "gpus", "right")
    delete(served, "gpus")


def test_a_pod_whose_claim_is_another_drivers_without_devices_starts_and_has_none_of_ours(served: Cluster) -> None:
    """A driver that returns no device in Prepare is not told at all."""
    node = served.nodes["n1"].machine
    bare = node.start("bare", sys.executable, "-m", "tests.cluster.bare_driver")
    wait_until(lambda: "registered" in bare.log.read_text(), f"the other driver ({bare.log})", 30)
    make(served, _slice(), _class("bare"))
    spec = {"devices": {"requests": [{"name": "it", "exactly": {"deviceClassName": "bare"}}]}}
    make(served, template("bare", spec))
    start(served, claiming("bare", {"rdma": "bare"}))
    (claim,) = claims_of(served, "bare")
    assert [it["driver"] for it in claim["status"]["allocation"]["devices"]["results"]] == ["bare.example"]
    assert [it["devices"] for it in told(served, "bare")["c0"]["claims"]] in ([], [[]])
    assert verbs(served, "bare") == []
    delete(served, "bare")


@needs_1_36
def test_the_shares_of_a_device_are_told_by_their_ids_and_the_claim_beside_them_is_served(served: Cluster) -> None:
    """Each pod is told its own share of the one device; and has its own device of ours."""
    node = served.nodes["n1"]
    driver = node.machine.start("shares", sys.executable, "-m", "tests.cluster.share_driver", str(node.credentials))
    wait_until(lambda: "registered" in driver.log.read_text(), f"the driver of shares ({driver.log})", 30)
    spec = {"devices": {"requests": [{"name": "part", "exactly": {"deviceClassName": "shares"}}]}}
    make(
        served, share_slice("n1"), _class("shares"), template("shares", spec), template("own", claim_spec({"nic": {}}))
    )
    ids = []
    for name in ("part-a", "part-b"):
        start(served, claiming(name, {"share": "shares", "rdma": "own"}))
        (results,) = [it["status"]["allocation"]["devices"]["results"] for it in claims_of(served, name) if _shared(it)]
        devices = [it for claim in told(served, name)["c0"]["claims"] for it in claim["devices"]]
        (share,) = [it for it in devices if it["driver"] == "shares.example"]
        (own,) = [it for it in devices if it["driver"] == DRIVER]
        assert (share["device"], share["share"]) == ("d0", results[0]["shareID"])
        assert own["share"] == ""
        assert verbs(served, name) == [NAMES[own["device"]]]
        ids.append(share["share"])
    assert len(set(ids)) == 2
    for name in ("part-a", "part-b"):
        delete(served, name)


def _shared(claim: Mapping[str, Any]) -> bool:
    return bool(claim["status"]["allocation"]["devices"]["results"][0].get("shareID"))


@pytest.mark.skipif(MINOR < 37, reason="the kubelet serves PodsAPI since Kubernetes 1.37")
def test_the_pods_api_knows_a_pod_before_its_claims_name_and_the_container_has_its_device(served: Cluster) -> None:
    """What the kubelet tells there of a pod that has just started does not say which claim was made for it."""
    for number in range(3):
        name = f"known-{number}"
        uid = start(served, claiming(name, {"rdma": "parts"}))["metadata"]["uid"]
        (claim,) = claims_of(served, name)
        asked = ("-m", "tests.cluster.podsapi", uid, claim["metadata"]["name"])
        found = json.loads(served.nodes["n1"].machine.run(sys.executable, *asked))
        assert found == {uid: True, claim["metadata"]["name"]: False}
        assert len(verbs(served, name)) == 4
        delete(served, name)


def _slice() -> dict[str, Any]:
    pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "bare.example", "nodeName": "n1", "pool": pool, "devices": [{"name": "d0"}]}
    kind = "ResourceSlice"
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "bare"}, "spec": spec}


def _class(name: str) -> dict[str, Any]:
    selector = {"cel": {"expression": f'device.driver == "{name}.example"'}}
    kind, spec = "DeviceClass", {"selectors": [selector]}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
