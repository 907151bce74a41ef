"""The admission policy that adds the guard resource to the containers of pods that may request our devices. Pure.

The guard resource is an extended resource for which the kubelet adds the guard, an OCI hook that keeps a container from
starting without its devices. The policy sees only the pod. It adds the resource to a pod with our annotations, and to
a pod with a claim that none of its containers names. It cannot see whose driver serves such a claim, so it treats the
claim as ours (docs/adr/0053).

Applying the policy twice changes nothing, so Kubernetes can apply it again after a webhook has added a container.
"""

from __future__ import annotations

from nri_rdma.commands.claims.manifests import Manifest
from nri_rdma.text.share_annotations import GUARD_OFF, guard_label

NAME = "nri-rdma-guard"
_ADMISSION = "admissionregistration.k8s.io"
_CONTAINERS = ("containers", "initContainers")
_NAMES_IT = "object.spec.?{}.orValue([]).exists(c, c.?resources.?claims.orValue([]).exists(n, n.name == r.name))"
_UNNAMED_CLAIM = (
    f"object.spec.?resourceClaims.orValue([]).exists(r, !({' || '.join(map(_NAMES_IT.format, _CONTAINERS))}))"
)


def guard_manifests(resource: str, prefix: str, *, has_claims: bool) -> list[Manifest]:
    """Return the admission policy and its binding. The policy adds `resource`, which brings the guard (an OCI hook that
    keeps a container from starting without its devices), to pods that have an annotation with `prefix`.

    With `has_claims`, it also adds the resource to pods with a claim that no container names, because that claim may be
    for our driver.
    """
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
    """Return a selector for the policy. It leaves out the namespaces and pods with the label that switches off the
    guard, an OCI hook that keeps a container from starting without its devices."""
    return {"matchExpressions": [{"key": guard_label(prefix), "operator": "NotIn", "values": [GUARD_OFF]}]}


def _limited(resource: str) -> str:
    """Return the CEL expression that adds the resource to each container that lacks it. Ephemeral containers cannot
    have resources."""
    lists = ", ".join(_list(kind, resource) for kind in _CONTAINERS)
    return f"Object{{spec: Object.spec{{{lists}}}}}"


def _list(kind: str, resource: str) -> str:
    lacking = f"object.spec.?{kind}.orValue([]).filter(c, !('{resource}' in c.?resources.?limits.orValue({{}})))"
    limits = f"Object.spec.{kind}.resources{{limits: {{'{resource}': '1'}}}}"
    return f"{kind}: {lacking}.map(c, Object.spec.{kind}{{name: c.name, resources: {limits}}})"
