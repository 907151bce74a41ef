"""Claims that no container names, also for pods of which no driver is told: the kubelet's checkpoint names them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.pods import START_S, delete, execute, pod, runs, start
from tests.cluster.programs import MINOR
from tests.cluster.test_claims import CONFIG, allocated, claim_spec, mac_of, macs, make, named, served, template, verbs

__all__ = ["CONFIG", "served"]

GATES = ("GenericWorkload", "DRAWorkloadResourceClaims") if MINOR >= 37 else ()
"""Off by default in 1.37: claims that are reserved for a PodGroup."""


def unnamed(name: str, **claim: str) -> dict[str, Any]:
    """A pod of two containers that has the claim and names it in none of them."""
    resources: list[dict[str, Any]] = [{"resources": {}}, {"resources": {}}]
    return pod(name, containers=resources, resourceClaims=[{"name": "rdma", **claim}])


def test_each_container_of_a_pod_has_the_devices_of_a_claim_that_none_names(served: Cluster) -> None:
    make(served, template("whole", claim_spec({"nic": {}}, {"mode": "exclusive"})))
    start(served, unnamed("whole", resourceClaimTemplateName="whole"))
    (number,) = allocated(served, "whole", "nic")
    assert mac_of(number) in macs(served, "whole")
    for container in ("c0", "c1"):
        assert verbs(served, "whole", container) == [number]
    assert "RDMA_DEVICES_RDMA_NIC=" in execute(served, "whole", "env")
    delete(served, "whole")


def test_the_second_pod_of_a_shared_claim_has_its_devices_though_no_call_names_it(served: Cluster) -> None:
    make(served, named("shared", claim_spec({"nic": {}}, {"mode": "shared"})))
    for name in ("u1", "u2"):
        start(served, unnamed(name, resourceClaimName="shared"))
    assert verbs(served, "u1") == verbs(served, "u2") == allocated(served, "u2", "nic")
    print(served.nodes["n1"].machine.run("cat", "/var/lib/kubelet/dra_manager_state"))
    for name in ("u1", "u2"):
        delete(served, name)
    served.kubectl("delete", "resourceclaim", "shared", "--timeout=30s")


@pytest.mark.skipif(MINOR < 37, reason="Kubernetes has PodGroups with claims in its beta API since 1.37")
def test_the_pods_of_a_podgroup_have_the_devices_of_its_claim(served: Cluster) -> None:
    """The claim names the group and none of its pods."""
    claims = [{"name": "rdma", "resourceClaimName": "gang"}]
    group = {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims}
    kind = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": {"name": "gang"}}
    make(served, named("gang", claim_spec({"nic": {}}, {"mode": "shared"})), {**kind, "spec": group})
    asked = [unnamed(name, resourceClaimName="gang") for name in ("g1", "g2")]
    for it in asked:
        it["spec"]["schedulingGroup"] = {"podGroupName": "gang"}
    make(served, *asked)
    for name in ("g1", "g2"):
        served.wait(f"pod {name}", partial(runs, served, name), START_S)
    (reserved,) = served.get("resourceclaim", "gang")["status"]["reservedFor"]
    assert (reserved["resource"], reserved["name"]) == ("podgroups", "gang")
    assert verbs(served, "g1") == verbs(served, "g2") == allocated(served, "g2", "nic")
    for name in ("g1", "g2"):
        delete(served, name)
