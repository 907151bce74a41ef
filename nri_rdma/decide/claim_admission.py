"""Checks whether a claim may have its devices as it asks for them, and writes the request into its CDI spec. Pure.

The scheduler has chosen the devices. A pool's rules apply by the claim's namespace. Parameters of the device class come
from the administrator and are trusted; parameters of the claim itself need the same rights as a pod's annotation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any  # Any: JSON

from nri_rdma.decide.placement import Taken
from nri_rdma.decide.policy import Admitted, Policy, admit, first_mode, refuse_part, rule_of
from nri_rdma.errors import ErrorCode, PlacementError
from nri_rdma.model.claim import Claim, ClaimRequest
from nri_rdma.model.device import CharKind, Node, RdmaDevice
from nri_rdma.model.pool import Asker, Pool, PoolDoor, Rule
from nri_rdma.model.request import LABEL, LABEL_HINT, DeviceRequest, Isolation, Mode, PodRequest, RdmaLimits
from nri_rdma.model.rights import InterfaceRight
from nri_rdma.text.allocated_claim import POD_CLAIM_NAME, main_request
from nri_rdma.text.nodes import node_of
from nri_rdma.text.refusals import quoted, refused
from nri_rdma.text.requests import read_parameters, read_part

_OF_CLASS = Rule(
    name="device class",
    where="the device class",
    char_kinds=frozenset(CharKind),
    interface=frozenset(InterfaceRight),
)
"""The rule for the parameters of class and claim together. It grants every right, because the claim's own parameters
have been checked against the configured rule, and those of the class come from the administrator."""

_OF_NODES = frozenset({"name", "devices", "memlock", "limits"})
"""The parameters that still have a meaning with admin access, where a pod gets only device nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedClaim:
    """A claim's request that may be served. `devices` are in the order of the claim; `text` is the JSON to write into
    the CDI device of the request, under nri-rdma's annotation key."""

    request: ClaimRequest
    devices: tuple[RdmaDevice, ...]
    pool: str
    mode: Mode
    text: str


def admit_claim(
    policy: Policy, node: Node, claim: Claim, request: ClaimRequest, devices: tuple[RdmaDevice, ...]
) -> AdmittedClaim:
    """Return the claim's request with its mode, limits and other settings that the pool adds. Raise RequestError for a
    parameter that is wrong, and PlacementError if the pool, a rule or the kernel does not allow the request. The error
    names the claim and the key."""
    where = f"claim {claim.namespace}/{claim.name}, request {request.name}"
    pool = _pool_of(policy, devices, where)
    request, admitted = admit_request(
        policy, node, Asker(namespace=claim.namespace), pool, request, len(devices), where
    )
    text = json.dumps(asked_words(claim.label, request, admitted))
    return AdmittedClaim(request=request, devices=devices, pool=pool.name, mode=admitted.mode, text=text)


def _looking_on(request: ClaimRequest, where: str) -> ClaimRequest:
    """Return the claim's request with only its parameters about device nodes, because admin access gives no more. Other
    parameters of the device class are dropped, because the class may also serve claims without admin access. Raise
    RequestError if the claim itself sets other parameters."""
    for key in request.from_claim:
        if key not in _OF_NODES and (key != "mode" or request.from_claim[key] != Mode.SHARED):
            what = f"{key} does not go with adminAccess: the pod gets device nodes, and the netdev stays where it is"
            raise refused(f"{where}, parameters.{key}", what, f"leave {key} out, or adminAccess")
    return replace(
        request,
        parameters={key: value for key, value in request.parameters.items() if key in _OF_NODES},
        from_claim={key: value for key, value in request.from_claim.items() if key in _OF_NODES},
    )


def _in_mode_shared(policy: Policy) -> Policy:
    """Return the policy for requests with admin access: they use mode shared, whatever modes the pools and rules
    allow."""
    pools = {name: replace(pool, modes=(Mode.SHARED,), requires_isolation=False) for name, pool in policy.pools.items()}
    return replace(policy, pools=pools, rules=tuple(replace(rule, modes=()) for rule in policy.rules))


def holder_of(devices: tuple[RdmaDevice, ...], taken: Taken, mode: Mode) -> str:
    """Return a text that names a device that cannot be given in this mode yet, and the pod that still has it; "" if all
    devices can be given."""
    for device in devices:
        for holding in taken.get(device.id, ()):
            if holding.bars(mode):
                return f"{device.name} is still held by {holding.owner}"
    return ""


def _pool_of(policy: Policy, devices: tuple[RdmaDevice, ...], where: str) -> Pool:
    pools = {pool.name: pool for pool in policy.pools.values() if pool.door is PoolDoor.CLAIMS}
    found = [pool for pool in pools.values() if all(pool.has(device) for device in devices)]
    if not found:
        what = f"no pool with door = claims has {' and '.join(device.name for device in devices)}"
        raise PlacementError(
            ErrorCode.NOT_IN_POOL, what, where=where, hint="delete the claim: the configuration of the node has changed"
        )
    return found[0]


def admit_request(
    policy: Policy, node: Node, asker: Asker, pool: Pool, request: ClaimRequest, count: int | None, where: str
) -> tuple[ClaimRequest, Admitted]:
    """Return the claim's request, and its mode and settings in the pool for `count` devices (None: unknown). The
    claim's author needs rights only for parameters in the claim, not for those of the device class. With admin access
    only parameters about device nodes remain.

    Raise RequestError for a parameter that is wrong, and PlacementError if a right is missing or the kernel cannot
    serve the request. `where` names the claim and its request in errors.
    """
    if request.is_admin:
        request, policy = _looking_on(request, where), _in_mode_shared(policy)
        pool = policy.pools[pool.name]
    where = f"{where}, parameters"
    part = _of_pool(read_part(node_of(request.from_claim), where, count), pool)
    whole = _of_pool(read_parameters(node_of(request.parameters), where, count), pool)
    mode = whole.mode or first_mode(policy, node, asker, pool)
    refuse_part(policy, node, part if whole.mode is not None else replace(part, mode=mode), asker)
    rule = rule_of(policy, asker, pool.name)
    trusted = replace(policy, rules=(replace(_OF_CLASS, max_limits=_bounds(rule, whole.limits)),))
    (admitted,) = admit(trusted, node, PodRequest(requests=(replace(whole, mode=mode),)), asker)
    return request, admitted


def _bounds(rule: Rule | None, said: RdmaLimits | None) -> RdmaLimits | None:
    """Return the rule's maximum for each limit that neither the device class nor the claim sets. `said` are the limits
    that they set. A limit in `said` needs no maximum: the class may exceed the rule, and the claim's own limits have
    been checked already."""
    most, named = (rule and rule.max_limits) or RdmaLimits(), said or RdmaLimits()
    bounds = RdmaLimits(
        hca_handles=most.hca_handles if named.hca_handles is None else None,
        hca_objects=most.hca_objects if named.hca_objects is None else None,
    )
    return None if bounds == RdmaLimits() else bounds


def _of_pool(request: DeviceRequest, pool: Pool) -> DeviceRequest:
    return replace(request, pool=pool.name, name=request.name or "claim", cdi_device=pool.name)


def request_name(label: str, request: str) -> str:
    """Return the default name of a claim's request, for parameters without a name. Dots of the claim's name become
    dashes."""
    return f"{label.replace('.', '-')}-{main_request(request)}"[:63].strip("-")


def asked_words(label: str, request: ClaimRequest, admitted: Admitted) -> Mapping[str, Any]:
    """Return the request's parameters completed with all that the pool adds. `label` is the claim's name in the pod,
    which the claim's author may set by an annotation. Raise RequestError if `label` is not a valid name."""
    name = request_name(label, request.name)
    if LABEL.fullmatch(name) is None:
        raise refused(f"annotation {POD_CLAIM_NAME}", f"{quoted(label)} is no claim's name in a pod", LABEL_HINT)
    asked = {"name": name, **request.parameters}
    asked["mode"] = str(admitted.mode)
    limits = admitted.request.limits
    if limits is not None:
        told = {"hcaHandles": limits.hca_handles, "hcaObjects": limits.hca_objects}
        asked["limits"] = {key: value for key, value in told.items() if value is not None}
    if admitted.request.isolation is Isolation.HARD:
        asked["isolation"] = str(Isolation.HARD)
    if request.is_admin:
        asked["adminAccess"] = True
    return asked
