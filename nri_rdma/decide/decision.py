"""Decides what a pod gets on a node: one decision for the engine, `explain` and the dry run. Pure.

All inputs are gathered beforehand, in a Question. The order of the steps is fixed: narrow the request by the kubelet's
allocation, read the requests of CDI devices, check the runtime handler and limits, admit by policy, place devices.
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
    """The runtime's handling of RLIMIT_MEMLOCK. `ceiling` is the highest limit that the runtime may set, in bytes.
    `dropped_by` is the runtime's name if it sets no limits at all, otherwise ""."""

    ceiling: int = UNLIMITED
    dropped_by: str = ""
    default: int | None = None
    """The limit in bytes for containers with devices if the pod asks for no limit; None: the runtime's own limit
    stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """All facts on which a decision depends: the state of the node, and the request of a pod or of one container, which
    may have come with further devices."""

    owner: str
    """The pod that will hold the devices: namespace/name."""
    asker: Asker
    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    """The request as its author wrote it; empty if only CDI devices make requests."""
    allocation: PodAllocation | None = None
    """The kubelet's allocation of devices to the pod's containers; None: the kubelet reported none."""
    gpus: PodGpus | None = None
    """The kubelet's report about the pod's GPUs; it may say that no report came in time. None: the kubelet was not
    asked."""
    grants: tuple[CdiGrant, ...] = ()
    """The CDI devices of the pod or container that concern nri-rdma."""
    adoption: Adoption = field(default_factory=Adoption)
    node: Node
    policy: Policy
    offer: Offer
    """The devices of each pool of `policy` on `node`. They are computed once for all decisions with this policy and
    node."""
    has_ties: bool = False
    """Whether a device of the node cannot be given to one pod alone, because something on the host depends on its
    netdev and could not be restored afterwards."""
    memlock: MemlockBounds = field(default_factory=MemlockBounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The result of a decision. If it has a refusal, the other attributes have the results of the steps before the
    refusal."""

    request: PodRequest
    """The request for only the containers to which the kubelet allocated devices, with the GPUs near which its devices
    have to be."""
    admitted: tuple[Admitted, ...] = ()
    placed: tuple[Placed, ...] = ()
    """The chosen devices by request; empty if there is no request, or if the devices of CDI devices are only
    observed."""
    refusal: NriRdmaError | None = None
    reading_helps: bool = False
    """Whether reading the node again may change the decision, because it depends on facts whose changes the kernel does
    not announce."""


def decide(question: Question, taken: Taken) -> Decision:
    """Decide which devices the pod gets. `taken` has the devices that other pods have. A refusal is not raised, but
    returned in the decision."""
    request = narrowed(question.request, question.allocation, question.gpus)
    knows = question.allocation is not None
    decision = Decision(request=request, reading_helps=knows and any(item.gpus_problem for item in request.requests))
    try:
        items = tuple(_informed(item, question.gpus) for item in requests_of(question.grants, question.adoption))
        asked = PodRequest(requests=(*request.requests, *(item.request for item in items)))
        refuse_uncounted(request.requests)
        refuse_handler(question.policy, asked, question.asker)
        refuse_memlock(asked, question.memlock.ceiling, question.memlock.dropped_by)
        admitted = admit(question.policy, question.node, request, question.asker)
        is_tied = question.has_ties and any(item.mode is Mode.EXCLUSIVE for item in admitted)
        decision = replace(decision, admitted=admitted, reading_helps=decision.reading_helps or is_tied)
        return replace(decision, placed=_placed(question, taken, items, admitted))
    except NriRdmaError as refusal:
        refusal.pod = question.owner
        return replace(decision, refusal=refusal)


def narrowed(request: PodRequest, allocation: PodAllocation | None, gpus: PodGpus | None) -> PodRequest:
    """Return the request for only the containers to which the kubelet allocated devices, with the GPUs and CPUs of the
    containers."""
    items = (counted(informed(scoped(item, allocation), gpus)) for item in request.requests)
    return PodRequest(requests=tuple(_with_cpus(item, allocation) for item in items))


def _with_cpus(request: DeviceRequest, allocation: PodAllocation | None) -> DeviceRequest:
    if allocation is None or not is_near_numa(request):
        return request
    cpus = {cpu for it in allocation.containers if request.scope.covers(it.name) for cpu in it.cpus}
    return replace(request, cpus=tuple(sorted(cpus)))


def _informed(item: Wanted, gpus: PodGpus | None) -> Wanted:
    """Return the request of a CDI device with the pod's GPUs. The GPUs do not change the RDMA device, which a driver
    has chosen already. They are recorded so that other pods do not count these GPUs as idle."""
    return replace(item, request=informed(item.request, gpus))


def _placed(
    question: Question, taken: Taken, items: tuple[Wanted, ...], admitted: tuple[Admitted, ...]
) -> tuple[Placed, ...]:
    given = place_granted(question.node, taken, items, question.asker, question.owner)
    given = with_pools(question.policy, question.offer, given)
    free = with_grants(taken, given, question.owner) if given else taken
    refuse_two_values((*admitted, *(item.admitted for item in given)))
    placed = place(question.node, question.offer, free, admitted)
    pools = question.policy.pools.values()
    items_placed = (*with_share_limits(question.node, question.offer, pools, placed), *given)
    if question.node.rdma_netns is not RdmaNetns.EXCLUSIVE:
        return items_placed
    return tuple(_without_ipoib(it) if it.admitted.mode is Mode.EXCLUSIVE else it for it in items_placed)


def _without_ipoib(item: Placed) -> Placed:
    """Return the request's devices without their IPoIB netdevs: the kernel removes an IPoIB netdev when it moves the
    RDMA device, and creates a new one in the pod. Raise PlacementError if the request configures such a netdev."""
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
