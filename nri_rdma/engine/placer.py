"""Decides what a pod gets, and reserves it: asks `decide` with what is true now, and rescans the node before a refusal.

Nothing is attached here. Calls have a deadline in seconds of `time.monotonic`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeAlias

from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.decide.decision import MemlockBounds, Question
from nri_rdma.decide.placement import Placed
from nri_rdma.engine.asking import NOTHING_ASKED, Asked, asks_by, gather
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.node_cache import NodeReader
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.reservations import Reservations
from nri_rdma.errors import NriRdmaError, PlacementError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.observe.spans import Recorder

PresentQuestion: TypeAlias = Callable[[], Question]
"""Returns the question of the moment at which it is called."""


class Placer:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: NodeReader,
        offering: Offering,
        reservations: Reservations,
        evidence: EvidenceCollector,
        spans: Recorder,
        prefix: str,
    ) -> None:
        """`prefix` is that of our annotations."""
        self.node = node
        self.offering = offering
        self.reservations = reservations
        self.evidence = evidence
        self._spans = spans
        self.prefix = prefix
        self.asks = asks_by(prefix)
        """Returns whether a pod with these annotations asks us for anything. Every pod of the node pays for the
        call."""
        self.on_refused: list[Callable[[frozenset[str], NriRdmaError], None]] = []
        """Called with the CDI devices of a pod or container that is refused, and the error; a listener must not
        block."""

    @property
    def waits_for_specs(self) -> bool:
        """Return whether pods may have claims, and the specs that say which were never read."""
        return not self.evidence.specs.is_ready and self.offering.has_claims

    def await_specs(self, pod: Pod, deadline: float) -> None:
        """Wait until it is known which pods have claims. Raise NotReadyError at the deadline."""
        if self.waits_for_specs:
            self.evidence.specs.await_ready(pod, deadline)

    def asked(self, pod: Pod, annotations: Mapping[str, str]) -> Asked | None:
        """Return what a pod asks for; None when that is nothing. Raise RequestError, KubeletError, NotReadyError."""
        claimed = self.evidence.kubelet.claims.of(pod.uid)
        asked = gather(pod, annotations, self.prefix, self.evidence.kubelet, self._spans, claimed)
        return asked if asked.request.requests or self._grants(pod, asked) else None

    def choose(self, pod: Pod, asked: Asked, asker: Asker, by: float | None) -> tuple[Placed, ...]:
        """Select and reserve devices for a pod; none where the kubelet's allocation is only observed. `by` is the
        deadline of a rescan; None: the node was scanned just now. Raise PlacementError, NotReadyError."""
        with self._spans.span("place") as span:
            if by is not None:
                self.node.await_ports(by)
            question = self._question(pod, asked, asker)
            placed = self.place(pod.sandbox_id, pod, question, lambda: self._question(pod, asked, asker), by)
            span.attributes["rdma.devices"] = ",".join(device.name for item in placed for device in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in placed for reason in item.reasons)
            span.link(self.evidence.traces(question.grants))
        return placed

    def place(
        self, key: str, pod: Pod, question: Question, ask_again: PresentQuestion, by: float | None
    ) -> tuple[Placed, ...]:
        """Decide, and reserve the devices under the key. Before a refusal the node is rescanned and the question asked
        again, so that a refusal ends as soon as its cause does. Devices that are home already are free for it. `by` and
        the errors are as for `choose`."""
        if by is not None:
            self.node.await_releases(by)
        decision = self.reservations.place(key, question)
        if by is not None and isinstance(decision.refusal, PlacementError):
            self.node.await_rescan(pod, by)
            decision = self.reservations.place(key, ask_again())
        if decision.reading_helps:
            self.node.look_again()
        if decision.refusal is not None:
            names = frozenset(grant.name for grant in question.grants)
            for listener in self.on_refused if names else ():
                listener(names, decision.refusal)
            raise decision.refusal
        return decision.placed

    def question(self, pod: Pod, asker: Asker, grants: tuple[CdiGrant, ...], asked: Asked = NOTHING_ASKED) -> Question:
        """Return the question of this moment: what the pod, or its CDI devices, ask for, and what is true of node,
        policy and runtime."""
        question = self.offering.question(str(pod), asker, asked, grants, self.evidence.adoption)
        return question if pod.is_listed else replace(question, memlock=MemlockBounds())  # no runtime sets its limit

    def _grants(self, pod: Pod, asked: Asked) -> tuple[CdiGrant, ...]:
        kubelet = self.evidence.kubelet
        return (*kubelet.grants(asked.allocation), *kubelet.claims.grants(pod, asked.claimed, asked.allocation))

    def _question(self, pod: Pod, asked: Asked, asker: Asker) -> Question:
        kubelet = self.evidence.kubelet
        grants = self._grants(pod, asked)
        if asked.gpus is None and grants and asked.allocation is not None:
            asked = replace(asked, gpus=kubelet.gpus_of(asked.allocation))
        return self.question(pod, asker, grants, asked)
