"""Reads a ResourceClaim (resource.k8s.io/v1) that the scheduler has allocated. Pure.

Parameters are in the order in which Kubernetes copies them: those of the device class first. Later parameters override
earlier ones: objects key by key, other values as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any  # Any: JSON

from nri_rdma.errors import ClaimError, ErrorCode, RequestError
from nri_rdma.model.claim import Claim, ClaimName, ClaimRequest, Parameters
from nri_rdma.model.request import LABEL
from nri_rdma.text.api_objects import reading, word
from nri_rdma.text.refusals import is_deeper, quoted
from nri_rdma.text.yaml import MAX_DEPTH

POD_CLAIM_NAME = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim that was made from a template. Its value is the name of the claim in the pod's spec."""
EXTENDED_RESOURCE = "resource.kubernetes.io/extended-resource-claim"
"""The annotation of a claim that the scheduler made for an extended resource in the limits of containers."""
_FROM_CLASS, _FROM_CLAIM = "FromClass", "FromClaim"


_UID = re.compile(r"[0-9A-Za-z.-]{1,63}")
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){LABEL.pattern}(\.{LABEL.pattern})*")
_REQUEST = re.compile(rf"{LABEL.pattern}(/{LABEL.pattern})?")
_POOL = re.compile(rf"(?=.{{1,253}}\Z){_SUBDOMAIN.pattern}(/{_SUBDOMAIN.pattern})*")


def refuse_names(name: ClaimName) -> None:
    """Raise ClaimError if Kubernetes allows no claim with this namespace, name or uid. Paths are made from the three
    texts, so that a ``/`` in one of them would lead elsewhere."""
    if LABEL.fullmatch(name.namespace) is None or _SUBDOMAIN.fullmatch(name.name) is None:
        raise _no_claim(f"as {quoted(name.name)} in the namespace {quoted(name.namespace)}")
    refuse_uid(name.uid)


def refuse_uid(uid: str) -> None:
    """Raise ClaimError if Kubernetes allows no claim with this uid. The uid becomes part of a file's name, so that a
    ``/`` in it would lead to another folder."""
    if _UID.fullmatch(uid) is None:
        raise _no_claim(f"by the uid {quoted(uid)}")


def _no_claim(how: str) -> ClaimError:
    what = f"the kubelet names a claim {how}, which is impossible"
    hint = "see which program calls the driver's socket: Kubernetes allows no such name"
    return ClaimError(ErrorCode.KUBELET_ANSWER, what, hint=hint)


def claim_path(name: ClaimName) -> str:
    """Return the path of a claim at the API server. Raises ClaimError if Kubernetes allows no claim with this
    namespace, name or uid."""
    refuse_names(name)
    return f"/apis/resource.k8s.io/v1/namespaces/{name.namespace}/resourceclaims/{name.name}"


def read_claim(claim: Mapping[str, Any], driver: str) -> Claim:
    """Return the claim with the driver's devices that are allocated to it. The claim's `requests` are empty if it has
    no devices of the driver. Raises ApiServerError if the object is not a ResourceClaim, and RequestError if its
    parameters are nested too deep."""
    with reading("ResourceClaim", "asked for a claim"):
        return _claim(claim, driver)


def _claim(claim: Mapping[str, Any], driver: str) -> Claim:
    metadata, status = claim["metadata"], claim.get("status") or {}
    devices = (status.get("allocation") or {}).get("devices") or {}
    by_request: dict[str, list[Mapping[str, Any]]] = {}
    for result in devices.get("results") or ():
        if result["driver"] == driver:
            by_request.setdefault(word(result["request"], _REQUEST), []).append(result)
    own = partial(_parameters, devices.get("config") or (), driver)
    return Claim(
        namespace=word(metadata["namespace"]),
        name=word(metadata["name"]),
        uid=word(metadata["uid"]),
        label=_label(metadata["name"], metadata.get("annotations") or {}),
        requests=tuple(
            ClaimRequest(
                name=name,
                devices=tuple(word(it["device"], LABEL) for it in results),
                pool=word(results[0]["pool"], _POOL),
                parameters=merged([*own(name, _FROM_CLASS), *own(name, _FROM_CLAIM)]),
                from_claim=merged(own(name, _FROM_CLAIM)),
                is_admin=any(it.get("adminAccess") for it in results),
            )
            for name, results in by_request.items()
        ),
    )


def _label(name: str, annotations: Mapping[str, str]) -> str:
    """Return the name by which the pod's author knows the claim: for a claim from a template its name in the pod's
    spec, otherwise its own name. Returns "" for a claim that the scheduler made for an extended resource, because its
    author did not name it."""
    return "" if EXTENDED_RESOURCE in annotations else word(annotations.get(POD_CLAIM_NAME, name))


def merged(parameters: list[Parameters] | Iterator[Parameters]) -> Parameters:
    """Return one object that is merged from all parameters, key by key. Later parameters override earlier ones."""
    whole: dict[str, Any] = {}
    for one in parameters:
        whole = _over(whole, one)
    return whole


def main_request(name: str) -> str:
    """Return a request's name without the part after a slash. An allocation adds that part to the name: it is the
    alternative that the scheduler chose from the request's `firstAvailable`."""
    return name.partition("/")[0]


def _parameters(configs: Any, driver: str, request: str, source: str) -> Iterator[Parameters]:
    """Yield the driver's parameters for one request, in their order. `source` is FromClass (parameters of the device
    class) or FromClaim (parameters of the claim). Raises RequestError for parameters that are nested too deep."""
    for config in configs:
        opaque, named = config.get("opaque") or {}, list(map(word, config.get("requests") or ()))
        is_meant = not named or request in named or main_request(request) in named
        if config.get("source") == source and opaque.get("driver") == driver and is_meant:
            parameters = opaque.get("parameters") or {}
            if is_deeper(parameters, MAX_DEPTH):
                what = f"the parameters for {driver} are nested deeper than {MAX_DEPTH} levels"
                where = f"in {'the claim' if source == _FROM_CLAIM else 'its device class'}"
                raise RequestError(
                    ErrorCode.ANNOTATION_SIZE,
                    what,
                    hint="nest them less deep: no key needs so many levels",
                    where=where,
                )
            yield parameters


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(below)
    for key, value in above.items():
        old = changed.get(key)
        changed[key] = _over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return changed
