"""Decides what a pod gets: its request, narrowed by the kubelet's allocation, admitted by the policy, placed on the
node.

Nothing is attached here. Calls have a deadline in seconds of `time.monotonic`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from nri_rdma.attach.attachment import Chosen
from nri_rdma.decide.decision import MemlockBounds, Question, narrowed
from nri_rdma.decide.gpus import PodGpus, gpus_of, may_use_gpus, source_words
from nri_rdma.decide.granted import Grant
from nri_rdma.decide.placement import Placed
from nri_rdma.decide.policy import Asker, Offer, Policy, offer
from nri_rdma.decide.scoping import scope_words
from nri_rdma.engine.evidence import Adopter
from nri_rdma.engine.node_cache import NodeSource
from nri_rdma.engine.reservations import Allocations
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.device import Node
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import DeviceRequest, PodRequest
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import wait
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.annotations import asks, parse_pod_request

_LOOK_PAUSE_S = 5.0
"""Minimum interval between rescans for something that the kernel does not announce: a GPU that was reported (a MIG
device's UUID names no GPU), a device whose routes are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A pod's request as written, and what the kubelet reports: its allocation, and its GPUs."""

    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    allocation: PodAllocation | None = None
    gpus: PodGpus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """What a policy offers on a node; computed once per policy and node, not per pod."""

    policy: Policy
    node: Node
    offer: Offer
    has_ties: bool
    """Whether some device of the node cannot be had exclusively."""

    @classmethod
    def of(cls, policy: Policy, node: Node) -> _Offered:
        has_ties = any(device.ties for device in node.devices)
        return cls(policy=policy, node=node, offer=offer(policy, node), has_ties=has_ties)


class Placer:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: NodeSource,
        policy: Policy,
        allocations: Allocations,
        adopter: Adopter,
        readers: Workers,
        spans: Recorder,
        annotation_prefix: str,
    ) -> None:
        """`readers` rescan the node before a pod is refused."""
        self._node = node
        self.policy = policy
        """What this node offers to whom. A new policy applies to new pods; existing pods keep what they have."""
        self._offered = _Offered.of(policy, node.current)
        node.on_read.append(self._node_was_read)
        self._reservations = allocations
        self.adopter = adopter
        self._readers = readers
        self._spans = spans
        self._prefix = annotation_prefix
        self.memlock = MemlockBounds()
        """What the runtime does with RLIMIT_MEMLOCK."""
        self._looked = 0.0

    @property
    def node(self) -> Node:
        """Return the node's last scan."""
        return self._node.current

    def read_node(self) -> Future[None]:
        """Have a worker rescan the node."""
        return self._node.refresh_in(self._readers)

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod with these annotations asks us for anything."""
        return asks(annotations, self._prefix)

    def asks_for_devices(self, annotations: Mapping[str, str]) -> bool:
        """Return whether such a pod asks for devices. True for annotations that cannot be read: fail closed."""
        try:
            request = parse_pod_request(annotations, self._prefix)
        except NriRdmaError:
            return True
        return request is not None and bool(request.requests)

    def asked(self, pod: Pod, annotations: Mapping[str, str]) -> Asked | None:
        """Return what a pod asks for; None when that is nothing. Raise RequestError."""
        with self._spans.span("parse"):
            request = parse_pod_request(annotations, self._prefix) or PodRequest(requests=())
        asked = self._gathered(pod, request)
        return asked if asked.request.requests or self.adopter.told(asked.allocation) else None

    def choose(self, pod: Pod, asked: Asked, asker: Asker, by: float | None) -> Chosen:
        """Select and reserve devices for a pod; none where the kubelet's allocation is only observed. `by` is the
        deadline of a rescan; None: the node was scanned just now. Raise PlacementError, NotReadyError."""
        with self._spans.span("place") as span:
            placed = self.place(pod.sandbox_id, pod, lambda: self._question(pod, asked, asker), by)
            span.attributes["rdma.devices"] = ",".join(device.name for item in placed for device in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in placed for reason in item.reasons)
        return Chosen(placed=placed, rdma_cm=self.node.rdma_cm)

    def place(self, key: str, pod: Pod, gather: Callable[[], Question], by: float | None) -> tuple[Placed, ...]:
        """Decide, and reserve the devices under the key. Before a refusal the node is rescanned and the question
        gathered again, so that a refusal ends as soon as its cause does. `by` and the errors are as for `choose`."""
        decision = self._reservations.place(key, gather())
        if by is not None and isinstance(decision.refusal, PlacementError):
            self._await_reading(pod, by)
            decision = self._reservations.place(key, gather())
        if decision.reading_helps:
            self._look_again()
        if decision.refusal is not None:
            raise decision.refusal
        return decision.placed

    def question(self, pod: Pod, asker: Asker, asked: Asked, grants: tuple[Grant, ...]) -> Question:
        """Return the question of this moment: what the pod asks for, and what is true of node, policy and runtime."""
        offered = self._offered_on(self.node)
        return Question(
            owner=str(pod),
            asker=asker,
            adoption=self.adopter.adoption,
            node=offered.node,
            policy=offered.policy,
            offer=offered.offer,
            has_ties=offered.has_ties,
            memlock=self.memlock,
            request=asked.request,
            allocation=asked.allocation,
            gpus=asked.gpus,
            grants=grants,
        )

    def _question(self, pod: Pod, asked: Asked, asker: Asker) -> Question:
        grants = self.adopter.told(asked.allocation)
        if asked.gpus is None and grants and asked.allocation is not None:
            asked = replace(asked, gpus=self.adopter.gpus_of(asked.allocation))
        return self.question(pod, asker, asked, grants)

    def _await_reading(self, pod: Pod, by: float) -> None:
        """Wait until the node is rescanned. Raise NotReadyError when that is not in time, and the scan's own error."""
        refreshed = self.read_node()
        wait(refreshed, by - time.monotonic())
        if not refreshed.done():
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "what was free is taken, and reading the node anew takes longer than the runtime waits",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )

    # What it asks for

    def _gathered(self, pod: Pod, request: PodRequest) -> Asked:
        """Return the request with the kubelet's answer, if that matters here."""
        adopter = self.adopter
        asks_gpus = adopter.asks_for_gpus and any(map(may_use_gpus, request.requests))
        asks_scope = adopter.kubelet is not None and any(it.word for it in request.requests)
        if not (asks_gpus or asks_scope or adopter.asks_kubelet):
            return Asked(request=request)
        with self._spans.span("kubelet") as span:
            word = adopter.ask(pod)
            allocation = word.allocation
            gpus = adopter.gpus_told(word) if asks_gpus else None
            span.attributes["rdma.kubelet.containers"] = ",".join(sorted(allocation.named)) if allocation else ""
            span.attributes["rdma.scope"] = "; ".join(scope_words(item, allocation) for item in request.requests)
            if asks_gpus:
                span.attributes.update(_gpu_words(narrowed(request, allocation, gpus).requests))
        return Asked(request=request, allocation=allocation, gpus=gpus)

    def _look_again(self) -> None:
        """Request a rescan for something missing that the kernel does not announce. The next pod is placed with its
        result."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_PAUSE_S:
            self._looked = now
            self.read_node()

    # What the node offers

    def _node_was_read(self) -> None:
        """Compute the node's offers after a scan, so that no pod waits for it."""
        self._offered_on(self.node)

    def _offered_on(self, node: Node) -> _Offered:
        policy, offered = self.policy, self._offered
        if offered.policy is not policy or offered.node is not node:
            self._offered = offered = _Offered.of(policy, node)
        return offered


def _gpu_words(requests: Iterable[DeviceRequest]) -> dict[str, str]:
    """Return a span's attributes for the GPUs that requests are for."""
    asking = tuple(filter(may_use_gpus, requests))
    return {
        "rdma.gpus": ",".join(map(str, gpus_of(asking))),
        "rdma.gpus.source": ", ".join(dict.fromkeys(filter(None, map(source_words, asking)))),
        "rdma.gpus.problem": "; ".join(dict.fromkeys(item.gpus_problem for item in asking if item.gpus_problem)),
    }
