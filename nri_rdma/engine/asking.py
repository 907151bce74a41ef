"""What a pod asks for beside its annotations: what the kubelet allocated to it, where that matters."""

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
    """A pod's request as written, and what the kubelet reports: the CDI devices of its claims of our driver, its
    allocation, and its GPUs."""

    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    claimed: tuple[str, ...] = ()
    allocation: PodAllocation | None = None
    gpus: PodGpus | None = None


NOTHING_ASKED = Asked()


def gather(
    pod: Pod,
    request: PodRequest,
    kubelet: KubeletEvidence,
    spans: Recorder,
    claimed: tuple[str, ...] = (),
) -> Asked:
    """Return what the pod asks for: `request` is that of its annotations, `claimed` are the CDI devices of its claims.

    The kubelet is asked when its answer matters: for GPUs, for CDI devices, and for a pod that may be the one whose
    shares it has just allocated. Blocks for the kubelet's budget at most.
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
