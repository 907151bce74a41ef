"""The rights of the daemons, as the cluster gets them."""

from __future__ import annotations

from typing import Any

from nri_rdma.commands.claims.manifests import claims_manifests
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.model.request import Mode

DRIVER = "rdma.noderesource.dev"


def made(kind: str) -> list[dict[str, Any]]:
    modes = (Mode.SHARED,)
    pools = (Pool(name="nics", modes=modes, door=PoolDoor.CLAIMS), Pool(name="others", modes=modes))
    return [it for it in claims_manifests(pools, "rdma") if it["kind"] == kind]


def test_the_rights_are_these_and_no_others() -> None:
    (role,) = made("ClusterRole")
    rights = {
        (group, resource, verb, *rule.get("resourceNames", ()))
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    own = "resource.k8s.io"
    assert rights == {
        ("", "nodes", "get"),
        (own, "resourceclaims", "get"),
        (own, "resourceclaims/status", "patch"),
        (own, "resourceclaims/status", "update"),
        (own, "resourceclaims/driver", "associated-node:patch", DRIVER),
        (own, "resourceclaims/driver", "associated-node:update", DRIVER),
        *((own, "resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")),
    }


def test_each_pool_for_claims_has_a_device_class_and_others_have_none() -> None:
    assert [it["metadata"]["name"] for it in made("DeviceClass")] == ["nics"]
