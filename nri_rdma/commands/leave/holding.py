"""Finds the pods that have our devices or wait for them, among the pods and claims that the API server lists. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeAlias  # Any: an object of Kubernetes

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.text.annotations import asks_for_devices

Object: TypeAlias = Mapping[str, Any]
_ENDED = ("Succeeded", "Failed")


def holding(pods: Iterable[Object], claims: Iterable[Object], prefix: str, resources: Collection[str]) -> list[str]:
    """Return "NAMESPACE/NAME on NODE" for each scheduled pod that requests devices by an annotation, a claim or a
    resource. Pods that have ended are left out.

    `prefix` begins our annotations, and `resources` are the names of our extended resources.
    """
    ours = {_name(it) for it in claims if _is_ours(it)}
    return sorted(
        f"{_name(pod)} on {pod['spec']['nodeName']}"
        for pod in pods
        if pod["spec"].get("nodeName")
        and pod.get("status", {}).get("phase") not in _ENDED
        and (
            asks_for_devices(pod["metadata"].get("annotations") or {}, prefix)
            or any(it in ours for it in _claims(pod))
            or any(it in resources for it in _limits(pod))
        )
    )


def _is_ours(claim: Object) -> bool:
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results") or ()
    return any(it.get("driver") == DRIVER for it in results)


def _claims(pod: Object) -> Iterator[str]:
    namespace = pod["metadata"]["namespace"]
    made = pod.get("status", {}).get("resourceClaimStatuses") or ()
    named = pod["spec"].get("resourceClaims") or ()
    by_resource = pod.get("status", {}).get("extendedResourceClaimStatus")  # the scheduler's, for a class's resource
    for it in (*made, *named, *([by_resource] if by_resource else ())):
        yield f"{namespace}/{it.get('resourceClaimName')}"


def _limits(pod: Object) -> Iterator[str]:
    for kind in ("containers", "initContainers"):
        for container in pod["spec"].get(kind) or ():
            yield from container.get("resources", {}).get("limits") or ()


def _name(found: Object) -> str:
    return f"{found['metadata']['namespace']}/{found['metadata']['name']}"
