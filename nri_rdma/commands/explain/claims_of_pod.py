"""Explains which devices a pod gets by its claims, as far as that is known before scheduling. Pure.

The parameters of claims are explained elsewhere (nri_rdma.commands.explain.prepared_claims). This module says which
containers get the devices, how many and from which pool. The devices themselves are known only for an allocated claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any  # Any: a manifest before it is read

from nri_rdma.commands.explain.explanation import Facts
from nri_rdma.commands.explain.prepared_claims import ExplainedClaim
from nri_rdma.decide.advertised import DRIVER, slice_name
from nri_rdma.decide.claim_admission import request_name
from nri_rdma.model.device import RdmaDevice
from nri_rdma.model.pool import PoolDoor
from nri_rdma.model.request import env_name
from nri_rdma.text.allocated_claim import main_request
from nri_rdma.text.claim_manifest import devices_of, is_claim, reference_of
from nri_rdma.text.manifest import PodClaim, PodManifest
from nri_rdma.text.refusals import bounded, listed
from nri_rdma.text.templates import items_of

MAX_NAMED = 8
"""The maximum number of a pool's devices that a sentence lists by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimOfPod:
    """A claim of a pod. `requests` are the claim's requests for our devices, once for each pool that could serve them;
    empty if the claim is for other devices or not in the manifest. `containers` are the containers that get the
    devices."""

    claim: PodClaim
    namespace: str
    containers: tuple[str, ...]
    is_named: bool
    """Whether a container names the claim. If none does, all containers get the claim's devices. Init containers do not
    count, because the kubelet does not report them; sidecars count."""
    is_known: bool
    """Whether the claim or its template is in the manifest."""
    requests: tuple[ExplainedClaim, ...] = ()
    alternatives: tuple[str, ...] = ()
    """The names of the claim's requests with alternatives (`firstAvailable`). The scheduler chooses one alternative of
    each."""
    allocated: tuple[str, ...] | None = None
    """The names of our devices that are allocated to the claim; None if it is not allocated, or if the manifest does
    not have its status."""

    named: tuple[tuple[str, str], ...] = ()
    """Pairs of a container that names the claim, and the request of the claim that this container gets. An empty
    request means all requests."""

    def containers_of(self, request: str) -> tuple[str, ...]:
        """Return the containers that get the devices of this request of the claim."""
        own = {"", main_request(request)}
        names = dict.fromkeys(name for name, it in self.named if it in own)
        return tuple(names) if self.is_named else self.containers

    def gives(self, container: str) -> bool:
        """Return whether the container gets any of our devices by the claim."""
        if not self.requests:
            return self.is_ours and container in self.containers
        return any(container in self.containers_of(it.request) for it in self.requests)

    @property
    def is_ours(self) -> bool:
        """Whether the claim requests our devices, or has some of them allocated."""
        return bool(self.requests or self.allocated)

    @property
    def devices(self) -> int | None:
        """The number of our devices that the claim brings; None if it is not known, such as for a request with
        `allocationMode: All`."""
        if self.allocated is not None:
            return len(self.allocated)
        counts = {it.request: it.count for it in self.requests}
        known = [count for count in counts.values() if count is not None]
        return sum(known) if len(known) == len(counts) else None

    @property
    def refused(self) -> ExplainedClaim | None:
        """The first request of the claim that no possible pool would serve, with the refusal; None if each request can
        be served."""
        for name in dict.fromkeys(it.request for it in self.requests):
            told = [it for it in self.requests if it.request == name]
            if all(it.refusal is not None for it in told):
                return told[0]
        return None


def claims_of_pod(
    pod: PodManifest, documents: Iterable[object], claims: Iterable[ExplainedClaim], facts: Facts
) -> tuple[ClaimOfPod, ...]:
    """Return the claims of the pod, in the pod's order. `documents` is the manifest, and `claims` are the explained
    claims of that manifest."""
    explained = tuple(claims)
    objects = {
        reference_of(item): item
        for document in documents
        for item, _ in items_of(document)
        if isinstance(item, dict) and is_claim(item)
    }
    return tuple(_claim_of_pod(pod, claim, objects, explained, facts) for claim in pod.claims)


def _claim_of_pod(
    pod: PodManifest,
    claim: PodClaim,
    objects: Mapping[tuple[str, str, str], Mapping[str, Any]],
    claims: tuple[ExplainedClaim, ...],
    facts: Facts,
) -> ClaimOfPod:
    named = tuple((it.name, own) for it in pod.containers for name, own in it.claim_requests if name == claim.name)
    naming = tuple(dict.fromkeys(name for name, _ in named))
    is_named = any(it.name in naming and not it.ends_first for it in pod.containers)
    found = objects.get((claim.kind, pod.namespace, claim.object))
    full = f"{pod.namespace}/{claim.object}"
    return ClaimOfPod(
        claim=claim,
        namespace=pod.namespace,
        containers=naming if is_named else tuple(it.name for it in pod.containers),
        is_named=is_named,
        named=named,
        is_known=found is not None,
        requests=tuple(it for it in claims if it.kind == claim.kind and it.claim == full),
        alternatives=tuple(_alternatives(found)) if found is not None else (),
        allocated=_allocated(found, facts.node.devices) if found is not None else None,
    )


def _alternatives(claim: Mapping[str, Any]) -> Iterator[str]:
    requests = devices_of(claim).get("requests")
    for it in requests if isinstance(requests, list) else ():
        if isinstance(it, dict) and it.get("firstAvailable"):
            yield str(it.get("name"))


def _allocated(claim: Mapping[str, Any], devices: tuple[RdmaDevice, ...]) -> tuple[str, ...] | None:
    value: object = claim
    for key in ("status", "allocation", "devices", "results"):
        value = value.get(key) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    names = {slice_name(it.id): it.name for it in devices}
    ours = (str(it.get("device")) for it in value if isinstance(it, dict) and it.get("driver") == DRIVER)
    return tuple(names.get(name, name) for name in ours)


def claim_sentences(told: ClaimOfPod, facts: Facts) -> Iterator[str]:
    """Yield sentences that explain a pod's claim to the user."""
    claim = told.claim
    whom = f"container{'s' if len(told.containers) > 1 else ''} {listed(map(bounded, told.containers))}"
    but = " but an init container, and the kubelet does not report those" if told.named else ""
    whose = whom if told.is_named else f"every container, because no container names it{but} ({whom})"
    head = f"Claim {bounded(claim.name)} ({claim.kind} {bounded(claim.object)})"
    if not told.is_known:
        yield (
            f"{head} is not in the manifest, so that nothing is known of its devices: put it, and its device class,"
            f" into the file (kubectl get {claim.kind.lower()} {bounded(claim.object)} -n {told.namespace} -o yaml)."
        )
        return
    if told.allocated:
        yield f"{head} is allocated {listed(told.allocated)}, for {whose}."
        return
    for name in told.alternatives:
        yield f"{head}: its request {bounded(name)} has alternatives, and the scheduler decides which of them it gets."
    if not told.requests and told.alternatives:
        return
    if not told.requests:
        yield f"{head} asks for nothing of a pool of this node: {_why_nothing(facts)}."
        return
    yield f"{head} is for {whose}."
    for name in dict.fromkeys(it.request for it in told.requests):
        yield from _request_sentences(told, name, facts)


def _why_nothing(facts: Facts) -> str:
    if any(it.door is PoolDoor.CLAIMS for it in facts.policy.pools.values()):
        return f"neither it nor a device class of the manifest names the driver {DRIVER} or one of the node's pools"
    return "the node has no pool with door = claims, and the scheduler takes another node for our driver's devices"


def _request_sentences(told: ClaimOfPod, name: str, facts: Facts) -> Iterator[str]:
    served = [it for it in told.requests if it.request == name and it.parameters is not None]
    if not served:
        return  # the line of the claim already says why it is refused
    first = served[0]
    number = "all devices" if first.count is None else f"{first.count} device{'' if first.count == 1 else 's'}"
    origins = [f"{it.pool} (mode {it.parameters['mode']})" for it in served if it.parameters is not None]
    yield f"Its request {bounded(name)} is for {number} of pool {' or '.join(origins)}."
    yield (
        f"The scheduler decides which, when it binds the pod to a node; on this one there are "
        f"{'; '.join(_devices_words(it.pool, facts) for it in served)}."
    )
    for attribute, others in first.together:
        same = f"as those of request {listed(map(bounded, others))}" if others else "one for all of them"
        yield f"Alignment: its devices have the same {bounded(attribute)}, {same}."
    own = request_name(told.claim.name, name)
    variables = dict.fromkeys(env_name(it.parameters.get("name", own)) for it in served if it.parameters is not None)
    whom, where = told.containers_of(name), listed(f"RDMA_DEVICES_{it}" for it in variables)
    if not whom:
        yield "No container finds them, because none names this request."
    elif whom == told.containers:
        yield f"The containers find them in {where}."
    else:
        who, verb = ("Container", "finds") if len(whom) == 1 else ("Containers", "find")
        yield f"{who} {listed(map(bounded, whom))} {verb} them in {where}."


def _devices_words(pool: str, facts: Facts) -> str:
    devices = [it for it in facts.node.devices if facts.policy.pools[pool].has(it)]
    names = [it.name for it in devices[:MAX_NAMED]]
    more = [f"{len(devices) - MAX_NAMED} more"] if len(devices) > MAX_NAMED else []
    held = sum(1 for it in devices if facts.taken.get(it.id))
    free = "none of them held" if not held else f"{held} of them held by pods"
    return f"{listed([*names, *more])} in pool {pool}, {free}" if names else f"no device in pool {pool}"
