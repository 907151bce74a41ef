"""Everything that a pod asks for: the requests in its annotations, and what the kubelet allocated to it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nri_rdma.decide.decision import narrowed
from nri_rdma.decide.gpus import PodGpus, gpus_of, is_near_numa, may_use_gpus, source_words
from nri_rdma.decide.scoping import scope_words
from nri_rdma.engine.kubelet import KubeletEvidence
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import DeviceRequest, PodRequest
from nri_rdma.observe.spans import Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Everything that a pod asks for: by annotations, claims, CDI devices and device-plugin shares."""

    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    """The requests of its annotations and of its device-plugin shares."""
    claimed: tuple[str, ...] = ()
    """The CDI devices of its claims of nri-rdma's DRA driver."""
    allocation: PodAllocation | None = None
    """What the kubelet allocated to it; None: the kubelet was not asked, or does not report it."""
    gpus: PodGpus | None = None
    """Its GPUs according to the kubelet; None: the kubelet was not asked for them."""


NOTHING_ASKED = Asked()


def gather(
    pod: Pod,
    request: PodRequest,
    kubelet: KubeletEvidence,
    spans: Recorder,
    claimed: tuple[str, ...] = (),
) -> Asked:
    """Return everything that the pod asks for. `request`: the request in its annotations; `claimed`: the CDI devices of
    its claims.

    The kubelet is asked only if its answer matters: for GPUs, for CDI devices, for requests that depend on the pod's
    allocation, and while shares are allocated whose pod is not known yet. Blocks for at most the kubelet's budget of
    time.
    """
    asks_gpus = kubelet.asks_about_gpus and any(map(may_use_gpus, request.requests))
    asks_gpus = asks_gpus or (kubelet.is_there and any(map(is_near_numa, request.requests)))
    asks_scope = kubelet.kubelet is not None and any(it.word for it in request.requests)
    if not (asks_gpus or asks_scope or claimed or kubelet.asks_about_devices or kubelet.asks_about_shares):
        return Asked(request=request)
    with spans.span("kubelet") as span:
        word = kubelet.ask(pod)
        allocation = word.allocation
        shares = kubelet.share_requests(allocation)
        request = PodRequest(requests=(*request.requests, *shares)) if shares else request
        asks_gpus = asks_gpus or (kubelet.asks_about_gpus and bool(shares))
        gpus = kubelet.gpus_told(word) if asks_gpus else None
        if allocation is not None:
            span.link(kubelet.shares.traces(allocation))
        span.attributes["rdma.kubelet.containers"] = ",".join(sorted(allocation.named)) if allocation else ""
        span.attributes["rdma.scope"] = "; ".join(scope_words(item, allocation) for item in request.requests)
        if asks_gpus:
            span.attributes.update(_gpu_words(narrowed(request, allocation, gpus).requests))
    return Asked(request=request, claimed=claimed, allocation=allocation, gpus=gpus)


def _gpu_words(requests: Iterable[DeviceRequest]) -> dict[str, str]:
    """Return a span's attributes for the GPUs and CPUs that requests are for."""
    asking = tuple(filter(may_use_gpus, requests))
    return {
        "rdma.gpus": ",".join(map(str, gpus_of(asking))),
        "rdma.gpus.source": ", ".join(dict.fromkeys(filter(None, map(source_words, asking)))),
        "rdma.cpus": ",".join(map(str, dict.fromkeys(cpu for item in asking for cpu in item.cpus))),
        "rdma.gpus.problem": "; ".join(dict.fromkeys(item.gpus_problem for item in asking if item.gpus_problem)),
    }
