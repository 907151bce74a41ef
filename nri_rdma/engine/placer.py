"""What a pod gets: what it asks for, as the kubelet's word narrows it, admitted by the policy, placed on the node.

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
"""Between two looks for what may be there by now and may never be: a GPU that is told of (a MIG device's UUID names no
GPU), a device whose routes are gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a pod asks for, as it is written, and what the kubelet said of the pod: what it allocated, and its GPUs."""

    request: PodRequest = field(default_factory=lambda: PodRequest(requests=()))
    allocation: PodAllocation | None = None
    gpus: PodGpus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """What a policy offers on a node; made once for each of both, not for each pod."""

    policy: Policy
    node: Node
    offer: Offer
    has_ties: bool
    """Whether nobody can have one of the node's devices alone."""

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
        """`readers` read the node anew for who is about to be refused."""
        self._node = node
        self.policy = policy
        """What this node offers to whom. Another one is for pods that come; what pods have stays theirs."""
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
        """The node as last read."""
        return self._node.current

    def read_node(self) -> Future[None]:
        """Have the node read anew."""
        return self._node.refresh_in(self._readers)

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Whether a pod with these annotations asks us for anything."""
        return asks(annotations, self._prefix)

    def asks_for_devices(self, annotations: Mapping[str, str]) -> bool:
        """Whether such a pod is to have devices. What cannot be read may well ask: fail closed."""
        try:
            request = parse_pod_request(annotations, self._prefix)
        except NriRdmaError:
            return True
        return request is not None and bool(request.requests)

    def asked(self, pod: Pod, annotations: Mapping[str, str]) -> Asked | None:
        """What a pod asks for; None when that is nothing. Raises RequestError."""
        with self._spans.span("parse"):
            request = parse_pod_request(annotations, self._prefix) or PodRequest(requests=())
        asked = self._gathered(pod, request)
        return asked if asked.request.requests or self.adopter.told(asked.allocation) else None

    def choose(self, pod: Pod, asked: Asked, asker: Asker, by: float | None) -> Chosen:
        """Select devices for a pod, which are its own from now on; none where what the kubelet told of is observed.
        `by` is the deadline of a fresh reading; None: the node was read just now. Raises PlacementError,
        NotReadyError."""
        with self._spans.span("place") as span:
            placed = self.place(pod.sandbox_id, pod, lambda: self._question(pod, asked, asker), by)
            span.attributes["rdma.devices"] = ",".join(device.name for item in placed for device in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in placed for reason in item.reasons)
        return Chosen(placed=placed, rdma_cm=self.node.rdma_cm)

    def place(self, key: str, pod: Pod, gather: Callable[[], Question], by: float | None) -> tuple[Placed, ...]:
        """Decide, and reserve the devices under the key. A refusal is only given on fresh facts, so that it ends as
        soon as its cause does: the question is gathered again for it. `by` and what it raises are as for `choose`."""
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
        """Wait until the node is read again. Raises NotReadyError when it is not in time, and what the reading does."""
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
        """The request with what the kubelet says, if that matters here."""
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
        """Something was missing that the kernel gives no news of. The next pod is placed with what there is now."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_PAUSE_S:
            self._looked = now
            self.read_node()

    # What the node offers

    def _node_was_read(self) -> None:
        """What it offers is made now, and not while the first pod waits."""
        self._offered_on(self.node)

    def _offered_on(self, node: Node) -> _Offered:
        policy, offered = self.policy, self._offered
        if offered.policy is not policy or offered.node is not node:
            self._offered = offered = _Offered.of(policy, node)
        return offered


def _gpu_words(requests: Iterable[DeviceRequest]) -> dict[str, str]:
    """What a span says of the GPUs that requests are for."""
    asking = tuple(filter(may_use_gpus, requests))
    return {
        "rdma.gpus": ",".join(map(str, gpus_of(asking))),
        "rdma.gpus.source": ", ".join(dict.fromkeys(filter(None, map(source_words, asking)))),
        "rdma.gpus.problem": "; ".join(dict.fromkeys(item.gpus_problem for item in asking if item.gpus_problem)),
    }
