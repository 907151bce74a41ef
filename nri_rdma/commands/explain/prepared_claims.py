"""Explains the parameters with which our DRA driver would prepare the claims of a manifest on this node. Pure.

The driver's own function makes the decision. The scheduler chooses the devices and thereby the pool, so there is a
result for each possible pool.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any  # Any: a manifest before it is read

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.claim_admission import admit_request, asked_words
from nri_rdma.decide.policy import Asker, Policy
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.claim import ClaimRequest
from nri_rdma.model.device import Node
from nri_rdma.model.pool import Pool, PoolDoor
from nri_rdma.text.claim_manifest import (
    Reference,
    WrittenRequest,
    claims_on_host_network,
    classes_in,
    is_claim,
    reference_of,
    requests_in,
)
from nri_rdma.text.templates import items_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedClaim:
    """A request of a claim, explained for one pool: the parameters that result from the claim, its DeviceClass and the
    pool, or the refusal.

    `lacks_class`: the manifest does not contain the DeviceClass, so the result lacks the class's parameters.
    """

    kind: str
    claim: str
    request: str
    device_class: str
    lacks_class: bool
    pool: str
    parameters: Mapping[str, Any] | None = None
    refusal: NriRdmaError | None = None
    count: int | None = None
    """The number of devices; None for all devices of the pool."""
    together: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The claim's constraints on this request. Each is an attribute that must be equal on all its devices, and the
    other requests whose devices must have it, too."""


def explain_claims(documents: Iterable[object], node: Node, policy: Policy) -> tuple[ExplainedClaim, ...]:
    """Return the results for the requests of all claims for our driver, one for each pool that could serve the request.
    The pods in the documents show which claims belong to pods on the host's network."""
    every = [item for document in documents for item, _ in items_of(document) if isinstance(item, dict)]
    classes = classes_in(every)
    pools = [it for it in policy.pools.values() if it.door is PoolDoor.CLAIMS]
    on_host = claims_on_host_network(every)
    return tuple(
        _explained(claim, request, pool, classes, node, policy, on_host)
        for claim in every
        if is_claim(claim)
        for request, found in _ours(tuple(requests_in(claim, DRIVER, classes)), pools, classes)
        for pool in found
    )


_POOL_NAMED = re.compile(r"""\.pool\s*==\s*["']([^"']+)["']""")
"""Matches the name of a pool in a CEL selector of a DeviceClass, as in the selectors that `nri-rdma claims manifests`
writes."""


def _ours(
    requests: tuple[WrittenRequest, ...], pools: list[Pool], classes: Container[str]
) -> Iterator[tuple[WrittenRequest, list[Pool]]]:
    """Yield those of a claim's requests that are for our devices, each with the pools that could serve it. If none of
    them says so, all with parameters count: those of a config that names no request are for any of them."""
    named = [_named(it, pools, classes) for it in requests]
    sure = [it is not None or request.is_of(DRIVER) for it, request in zip(named, requests, strict=True)]
    for request, found, is_sure in zip(requests, named, sure, strict=True):
        if is_sure or (request.parameters and not any(sure)):
            yield request, pools if found is None else found


def _named(request: WrittenRequest, pools: list[Pool], classes: Container[str]) -> list[Pool] | None:
    """Return the pools that the selectors or the class of a request name; None if they name none.

    If the DeviceClass is not in the manifest, it is assumed to be made by `nri-rdma claims manifests`, which gives each
    DeviceClass the name of its pool.
    """
    named = {name for it in request.selectors for name in _POOL_NAMED.findall(it)}
    of_class = {request.device_class} if request.device_class not in classes else set()
    same = [pool for pool in pools if pool.name in (named or of_class)]
    return same if same or named else None


def _explained(
    claim: Mapping[str, Any],
    written: WrittenRequest,
    pool: Pool,
    classes: Mapping[str, Any],
    node: Node,
    policy: Policy,
    on_host: Container[Reference],
) -> ExplainedClaim:
    kind, namespace, name = reference_of(claim)
    asker = Asker(namespace=namespace, host_network=(kind, namespace, name) in on_host)
    name = name or "unnamed"
    told: dict[str, Any] = {
        "kind": kind,
        "claim": f"{namespace}/{name}",
        "request": written.name,
        "device_class": written.device_class,
        "lacks_class": written.device_class not in classes,
        "pool": pool.name,
        "count": written.count,
        "together": written.together,
    }
    request = ClaimRequest(
        name=written.name,
        devices=(),
        pool="",
        parameters=written.parameters,
        from_claim=written.from_claim,
        is_admin=written.is_admin,
    )
    where = f"claim {namespace}/{name}, request {written.name}"
    try:
        request, admitted = admit_request(policy, node, asker, pool, request, written.count, where)
        words = dict(asked_words(name, request, admitted))
        if kind == "ResourceClaimTemplate" and "name" not in written.parameters:
            del words["name"]  # each pod gives its own name to the claim made from a template
        return ExplainedClaim(**told, parameters=words)
    except NriRdmaError as error:
        return ExplainedClaim(**told, refusal=error)


def claim_lines(claims: Iterable[ExplainedClaim]) -> Iterator[str]:
    """Yield a line for each explained claim, with its parameters or its refusal."""
    for it in claims:
        kind = {"ResourceClaim": "Claim", "ResourceClaimTemplate": "Claim template"}[it.kind]
        of_class = f"class {it.device_class}{', which the manifest has not,' if it.lacks_class else ''}"
        head = f"{kind} {it.claim}, request {it.request} of {of_class} from pool {it.pool}"
        if it.refusal is not None:
            when = "its pod starts" if it.refusal.code is ErrorCode.HOST_NETWORK else "it is prepared"
            yield f"{head} is refused when {when}: {it.refusal}"
        else:
            yield f"{head} is prepared with {json.dumps(it.parameters)}"
