"""The admission policy that gives the guard resource to the containers of pods that may ask us for devices. Pure.

A policy reads the pod alone: an annotation of ours is seen, of a claim only that no container names it, not whose it is
(docs/adr/0053). It changes nothing where it has been, so that it can come again after a webhook has added a container.
"""

from __future__ import annotations

from nri_rdma.commands.claims_manifests import Manifest
from nri_rdma.text.shares import GUARD_OFF, guard_label

NAME = "nri-rdma-guard"
_ADMISSION = "admissionregistration.k8s.io"
_CONTAINERS = ("containers", "initContainers")
_NAMES_IT = "object.spec.?{}.orValue([]).exists(c, c.?resources.?claims.orValue([]).exists(n, n.name == r.name))"
_UNNAMED_CLAIM = (
    f"object.spec.?resourceClaims.orValue([]).exists(r, !({' || '.join(map(_NAMES_IT.format, _CONTAINERS))}))"
)


def guard_manifests(resource: str, prefix: str, *, has_claims: bool) -> list[Manifest]:
    """Return the policy and its binding. `prefix` is that of our annotations; `has_claims`: pods may have claims of
    ours, so that a claim that none of its pod's containers names may be one."""
    version = f"{_ADMISSION}/v1"
    return [
        {
            "apiVersion": version,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": NAME},
            "spec": _policy(resource, prefix, has_claims=has_claims),
        },
        {
            "apiVersion": version,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME},
        },
    ]


def _policy(resource: str, prefix: str, *, has_claims: bool) -> Manifest:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    is_ours = f"k == '{prefix}' || k.startsWith('{prefix}/')"
    asks = f"object.metadata.?annotations.orValue({{}}).exists(k, {is_ours})"
    return {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {
            "resourceRules": [rule],
            "namespaceSelector": _takes_part(prefix),
            "objectSelector": _takes_part(prefix),
        },
        "matchConditions": [
            {"name": "may-ask", "expression": f"{asks} || {_UNNAMED_CLAIM}" if has_claims else asks},
        ],
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": _limited(resource)}},
        ],
    }


def _takes_part(prefix: str) -> Manifest:
    """Return the selector of what has no label that leaves it out."""
    return {"matchExpressions": [{"key": guard_label(prefix), "operator": "NotIn", "values": [GUARD_OFF]}]}


def _limited(resource: str) -> str:
    """Return the expression of what is added: the resource, to each container that has none of it. Ephemeral containers
    can have no resources."""
    lists = ", ".join(_list(kind, resource) for kind in _CONTAINERS)
    return f"Object{{spec: Object.spec{{{lists}}}}}"


def _list(kind: str, resource: str) -> str:
    lacking = f"object.spec.?{kind}.orValue([]).filter(c, !('{resource}' in c.?resources.?limits.orValue({{}})))"
    limits = f"Object.spec.{kind}.resources{{limits: {{'{resource}': '1'}}}}"
    return f"{kind}: {lacking}.map(c, Object.spec.{kind}{{name: c.name, resources: {limits}}})"
