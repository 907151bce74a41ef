"""The Kubernetes objects that a cluster needs for our DRA driver: RBAC rights for the daemons, and a DeviceClass for
each pool. Pure.

A daemon may read all claims, write ResourceSlices, and write our driver's entries in the status of claims. Kubernetes
1.36 and later accepts only entries of our driver, in claims with devices of the node to which the daemon's token is
bound; earlier versions do not check that. RBAC cannot limit ResourceSlices to a node. So an admission policy refuses
slices of any node other than the token's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias  # Any: a manifest

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.model.pool import Pool, PoolDoor

Manifest: TypeAlias = dict[str, Any]

NAME = "nri-rdma"
"""The name of all objects, except the DeviceClasses, which have the names of their pools."""
_RBAC, _ADMISSION, _RESOURCE = "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "resource.k8s.io"
_TOKENS_NODE = "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"
_SLICES_NODE = "(request.operation == 'DELETE' ? oldObject : object).spec.?nodeName.orValue('')"


def claims_manifests(pools: Iterable[Pool], namespace: str) -> list[Manifest]:
    """Return the manifests of all objects for these pools. The service account is in the given namespace."""
    return [
        _of("v1", "ServiceAccount", {"name": NAME, "namespace": namespace}),
        _of(f"{_RBAC}/v1", "ClusterRole", {"name": NAME}, rules=_rules()),
        _of(
            f"{_RBAC}/v1",
            "ClusterRoleBinding",
            {"name": NAME},
            roleRef={"apiGroup": _RBAC, "kind": "ClusterRole", "name": NAME},
            subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": namespace}],
        ),
        _of(f"{_ADMISSION}/v1", "ValidatingAdmissionPolicy", {"name": NAME}, spec=_policy(namespace)),
        _of(
            f"{_ADMISSION}/v1",
            "ValidatingAdmissionPolicyBinding",
            {"name": NAME},
            spec={"policyName": NAME, "validationActions": ["Deny"]},
        ),
        *(_device_class(pool) for pool in pools if pool.door is PoolDoor.CLAIMS),
    ]


def _of(version: str, kind: str, metadata: Manifest, **rest: object) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def _rules() -> list[Manifest]:
    return [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
        {"apiGroups": [_RESOURCE], "resources": ["resourceclaims"], "verbs": ["get"]},
        {"apiGroups": [_RESOURCE], "resources": ["resourceclaims/status"], "verbs": ["patch", "update"]},
        {  # needed by Kubernetes 1.36 and later to write our driver's entries in claims with devices of this node
            "apiGroups": [_RESOURCE],
            "resources": ["resourceclaims/driver"],
            "resourceNames": [DRIVER],
            "verbs": ["associated-node:patch", "associated-node:update"],
        },
        {
            "apiGroups": [_RESOURCE],
            "resources": ["resourceslices"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
    ]


def _policy(namespace: str) -> Manifest:
    user = f"system:serviceaccount:{namespace}:{NAME}"
    rule = {
        "apiGroups": [_RESOURCE],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["resourceslices"],
    }
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "matchConditions": [{"name": "is-our-daemon", "expression": f"request.userInfo.username == '{user}'"}],
        "variables": [
            {"name": "tokensNode", "expression": _TOKENS_NODE},
            {"name": "slicesNode", "expression": _SLICES_NODE},
        ],
        "validations": [
            {"expression": "variables.tokensNode != ''", "message": "the token is bound to no pod or node"},
            {
                "expression": "variables.tokensNode == variables.slicesNode",
                "messageExpression": "'the token is for node ' + variables.tokensNode + ', and the ResourceSlice for '"
                " + variables.slicesNode",
            },
        ],
    }


def _device_class(pool: Pool) -> Manifest:
    of_pool = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].pool == '{pool.name}'"
    return _of(
        f"{_RESOURCE}/v1", "DeviceClass", {"name": pool.name}, spec={"selectors": [{"cel": {"expression": of_pool}}]}
    )
