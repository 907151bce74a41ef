"""What the claims of a manifest would be prepared with on a node. Pure.

The decision is the driver's, made by the same function. Which devices there are, and of which pool, the scheduler
decides: each pool of claims is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any  # Any: a manifest before it is read

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.claims import admit_request, asked_words
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
    """A request of a claim, from a pool: its parameters with those of its class and what the pool adds, or a refusal.
    `lacks_class`: the manifest has no device class of the request's, so that it is judged without."""

    kind: str
    claim: str
    request: str
    device_class: str
    lacks_class: bool
    pool: str
    parameters: Mapping[str, Any] | None = None
    refusal: NriRdmaError | None = None
    count: int | None = None
    """None: all that the pool has."""
    together: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Constraints of the claim: an attribute that it has in common with the devices of these requests."""


def explain_claims(documents: Iterable[object], node: Node, policy: Policy) -> tuple[ExplainedClaim, ...]:
    """Return the requests for devices of our driver, each for every pool of claims that it may get them from. Of the
    documents' pods it counts which of them are on the host's network."""
    every = [item for document in documents for item, _ in items_of(document) if isinstance(item, dict)]
    classes = classes_in(every)
    pools = [it for it in policy.pools.values() if it.door is PoolDoor.CLAIMS]
    on_host = claims_on_host_network(every)
    return tuple(
        _explained(claim, request, pool, classes, node, policy, on_host)
        for claim in every
        if is_claim(claim)
        for request in requests_in(claim, DRIVER, classes)
        for pool in _pools_for(request, pools, classes)
    )


_POOL_NAMED = re.compile(r"""\.pool\s*==\s*["']([^"']+)["']""")
"""In a selector: the attribute of our devices, as the classes of `claims manifests` ask for it."""


def _pools_for(request: WrittenRequest, pools: Iterable[Pool], classes: Container[str]) -> Iterator[Pool]:
    """Yield the pools whose devices a request may get; none for a request that nobody says to be for our devices. A
    class that the manifest has not is probably that of `claims manifests`, which has the name of its pool."""
    named = {name for it in request.selectors for name in _POOL_NAMED.findall(it)}
    of_class = {request.device_class} if request.device_class not in classes else set()
    same = [pool for pool in pools if pool.name in (named or of_class)]
    if same or named:
        yield from same
    elif request.is_of(DRIVER):
        yield from pools


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
            del words["name"]  # each pod has its own name for a claim that is made from a template
        return ExplainedClaim(**told, parameters=words)
    except NriRdmaError as error:
        return ExplainedClaim(**told, refusal=error)


def claim_lines(claims: Iterable[ExplainedClaim]) -> Iterator[str]:
    """Yield what a person reads of them."""
    for it in claims:
        kind = {"ResourceClaim": "Claim", "ResourceClaimTemplate": "Claim template"}[it.kind]
        of_class = f"class {it.device_class}{', which the manifest has not,' if it.lacks_class else ''}"
        head = f"{kind} {it.claim}, request {it.request} of {of_class} from pool {it.pool}"
        if it.refusal is not None:
            when = "its pod starts" if it.refusal.code is ErrorCode.HOST_NETWORK else "it is prepared"
            yield f"{head} is refused when {when}: {it.refusal}"
        else:
            yield f"{head} is prepared with {json.dumps(it.parameters)}"
