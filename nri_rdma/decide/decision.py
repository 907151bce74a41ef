"""Decides what a pod gets on a node: one decision for the engine, `explain` and the dry run. Pure.

Everything the decision depends on is gathered before it, in a Question. The order is a law: what the kubelet said
narrows the request, what CDI devices ask for is read, the runtime handler and limits are checked, the policy admits,
devices are placed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.decide.gpus import PodGpus, counted, informed, is_near_numa, refuse_uncounted
from nri_rdma.decide.granted import Wanted, place_granted, requests_of, with_grants, with_pools
from nri_rdma.decide.placement import Placed, Taken, place
from nri_rdma.decide.policy import (
    Admitted,
    Asker,
    Offer,
    Policy,
    admit,
    refuse_handler,
    refuse_memlock,
    refuse_two_values,
)
from nri_rdma.decide.scoping import scoped
from nri_rdma.decide.share_limits import with_share_limits
from nri_rdma.errors import ErrorCode, NriRdmaError, PlacementError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import IPOIB, Node, RdmaNetns
from nri_rdma.model.request import UNLIMITED, DeviceRequest, Mode, PodRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class MemlockBounds:
    """The runtime's handling of RLIMIT_MEMLOCK: the most that it may set, in bytes, and its name when it sets none."""

    ceiling: int = UNLIMITED
    dropped_by: str = ""
    default: int | None = None
    """For containers with devices whose pod asks for no limit, in bytes; None: the runtime's own limit stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The request of a pod, or of a container that came with more devices, and everything that decides what it gets."""

    owner: str
    """The pod that will hold the devices: namespace/name."""
    asker: Asker
    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    """The request as it is written; empty when only CDI devices ask."""
    allocation: PodAllocation | None = None
    """The kubelet's allocation; None: the kubelet reported none."""
    gpus: PodGpus | None = None
    """The kubelet's report of the pod's GPUs, also that it came too late; None: the kubelet was not asked."""
    grants: tuple[CdiGrant, ...] = ()
    """The CDI devices that ask for something."""
    adoption: Adoption = field(default_factory=Adoption)
    node: Node
    policy: Policy
    offer: Offer
    """What this policy offers on this node; made once for both."""
    has_ties: bool = False
    """Whether any of the node's devices cannot be given to one pod alone."""
    memlock: MemlockBounds = field(default_factory=MemlockBounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The decision, as far as it was made: a refusal stands beside what was known before it."""

    request: PodRequest
    """The request as the kubelet's allocation narrows it, with the GPUs that it is for."""
    admitted: tuple[Admitted, ...] = ()
    placed: tuple[Placed, ...] = ()
    """The devices; none when no device is asked for, or when CDI devices are only observed."""
    refusal: NriRdmaError | None = None
    reading_helps: bool = False
    """Whether something was missing that the kernel does not announce: a rescan of the node may find it."""


def decide(question: Question, taken: Taken) -> Decision:
    """Decide what the owner gets, given what other pods hold. A refusal is part of the decision."""
    request = narrowed(question.request, question.allocation, question.gpus)
    knows = question.allocation is not None
    decision = Decision(request=request, reading_helps=knows and any(item.gpus_problem for item in request.requests))
    try:
        items = tuple(_informed(item, question.gpus) for item in requests_of(question.grants, question.adoption))
        asked = PodRequest(requests=(*request.requests, *(item.request for item in items)))
        refuse_handler(question.policy, asked, question.asker)
        refuse_uncounted(request.requests)
        refuse_memlock(asked, question.memlock.ceiling, question.memlock.dropped_by)
        admitted = admit(question.policy, question.node, request, question.asker)
        is_tied = question.has_ties and any(item.mode is Mode.EXCLUSIVE for item in admitted)
        decision = replace(decision, admitted=admitted, reading_helps=decision.reading_helps or is_tied)
        return replace(decision, placed=_placed(question, taken, items, admitted))
    except NriRdmaError as refusal:
        refusal.pod = question.owner
        return replace(decision, refusal=refusal)


def narrowed(request: PodRequest, allocation: PodAllocation | None, gpus: PodGpus | None) -> PodRequest:
    """Return the request for the containers to which the kubelet gave devices, with their GPUs and CPUs."""
    items = (counted(informed(scoped(item, allocation), gpus)) for item in request.requests)
    return PodRequest(requests=tuple(_with_cpus(item, allocation) for item in items))


def _with_cpus(request: DeviceRequest, allocation: PodAllocation | None) -> DeviceRequest:
    if allocation is None or not is_near_numa(request):
        return request
    cpus = {cpu for it in allocation.containers if request.scope.covers(it.name) for cpu in it.cpus}
    return replace(request, cpus=tuple(sorted(cpus)))


def _informed(item: Wanted, gpus: PodGpus | None) -> Wanted:
    """Return a CDI device's request with the pod's GPUs. The driver has chosen the device, but other pods are placed by
    which GPUs are taken."""
    return replace(item, request=informed(item.request, gpus))


def _placed(
    question: Question, taken: Taken, items: tuple[Wanted, ...], admitted: tuple[Admitted, ...]
) -> tuple[Placed, ...]:
    given = place_granted(question.node, taken, items, question.asker, question.owner)
    given = with_pools(question.policy, question.offer, given)
    refuse_two_values((*admitted, *(item.admitted for item in given)))
    free = with_grants(taken, given, question.owner) if given else taken
    placed = place(question.node, question.offer, free, admitted)
    pools = question.policy.pools.values()
    items_placed = (*with_share_limits(question.node, question.offer, pools, placed), *given)
    if question.node.rdma_netns is not RdmaNetns.EXCLUSIVE:
        return items_placed
    return tuple(_without_ipoib(it) if it.admitted.mode is Mode.EXCLUSIVE else it for it in items_placed)


def _without_ipoib(item: Placed) -> Placed:
    """Return the devices without their IPoIB netdevs: the kernel removes these when it moves the RDMA device, and makes
    new ones in the pod. Raise PlacementError for a request that configures one."""
    request = item.admitted.request
    configures = not replace(request.interface, inherit=True).is_empty or request.routes or request.rules
    for device in item.devices if configures else ():
        for netdev in device.netdevs:
            if netdev.kind == IPOIB:
                raise PlacementError(
                    ErrorCode.INTERFACE_UNFIT,
                    f"{netdev.name} of {device.name} does not go into the pod: the kernel removes it with the RDMA"
                    " device's move, and makes another one there",
                    where=request.where,
                    hint="leave the interface's keys out and set it up in the pod, or `rdma system set netns shared`",
                )
    return replace(
        item,
        devices=tuple(
            replace(device, netdevs=tuple(it for it in device.netdevs if it.kind != IPOIB)) for device in item.devices
        ),
    )
