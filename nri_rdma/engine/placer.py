"""Selects devices for a pod and reserves them. The decision is made by `nri_rdma.decide.decision`; before a refusal the
node is rescanned.

Nothing is attached here. Calls have a deadline in seconds of `time.monotonic`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from nri_rdma.attach.attachment import Selection, cdi_devices_of
from nri_rdma.cdi.grants import CdiGrant
from nri_rdma.decide.decision import MemlockBounds, Question
from nri_rdma.engine.asking import NOTHING_ASKED, Asked, gather
from nri_rdma.engine.kubelet import KubeletEvidence
from nri_rdma.engine.node_cache import NodeReader
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.specs import SpecCache
from nri_rdma.errors import NriRdmaError, PlacementError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.request import PodRequest
from nri_rdma.observe.spans import Recorder


class Placer:
    """The selection and reservation of devices, for pods and for containers. Thread-safe."""

    def __init__(
        self,
        *,
        node: NodeReader,
        offering: Offering,
        reservations: Reservations,
        specs: SpecCache,
        kubelet: KubeletEvidence,
        spans: Recorder,
    ) -> None:
        self._node = node
        self._offering = offering
        self._reservations = reservations
        self._specs = specs
        self._kubelet = kubelet
        self._spans = spans
        self.on_refused: list[Callable[[frozenset[str], NriRdmaError], None]] = []
        """Listeners: called with the CDI devices of a pod or container that is refused, and the error; they must not
        block."""

    @property
    def waits_for_specs(self) -> bool:
        """Whether pods may have claims, but the CDI specs with these claims have not been read yet."""
        return not self._specs.is_ready and self._offering.has_claims

    def await_specs(self, pod: Pod, deadline: float) -> None:
        """Wait until the CDI specs of claims are read, if pods may have claims. Raise NotReadyError at the deadline."""
        if self.waits_for_specs:
            self._specs.await_ready(pod, deadline)

    def asked(self, pod: Pod, request: PodRequest) -> Asked | None:
        """Return everything that a pod asks for: the `request` of its annotations, its device-plugin shares, claims and
        CDI devices. Return None if it asks for nothing. Raise KubeletError or NotReadyError if this is not known
        yet."""
        claimed = self._kubelet.claims.of(pod.uid)
        asked = gather(pod, request, self._kubelet, self._spans, claimed)
        return asked if asked.request.requests or self._grants(pod, asked) else None

    def choose(self, pod: Pod, asked: Asked, asker: Asker, by: float | None) -> Selection:
        """Select and reserve devices for a pod; none if the setting `adopt` says that devices from other programs are
        only reported. Before a refusal the node is rescanned until `by` (seconds of `time.monotonic`); None: it was
        scanned just now. Raise PlacementError if devices are missing, and NotReadyError if the rescan is not done in
        time."""
        with self._spans.span("place") as span:
            chosen = self.place(pod.sandbox_id, pod, lambda: self._question(pod, asked, asker), by)
            span.attributes["rdma.devices"] = ",".join(it.name for item in chosen.placed for it in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in chosen.placed for reason in item.reasons)
            names = cdi_devices_of(chosen.placed)
            if names:
                span.link(self._specs.traces(names))
        return chosen

    def place(self, key: str, pod: Pod, ask: Callable[[], Question], by: float | None) -> Selection:
        """Decide the question that `ask` returns, and reserve the selected devices under `key`. Before a refusal wait
        for devices that are being returned, rescan the node and call `ask` again, until `by` (seconds of
        `time.monotonic`); None: the node was scanned just now. Raise the error that refuses the request:
        PlacementError, or NotReadyError if a retry helps."""
        if by is not None:
            self._node.await_ports(by)
            self._node.await_releases(by)
        question = ask()
        decision = self._reservations.place(key, question)
        if by is not None and isinstance(decision.refusal, PlacementError):
            self._node.await_rescan(pod, by)
            question = ask()
            decision = self._reservations.place(key, question)
        if decision.reading_helps:
            self._node.look_again()
        if decision.refusal is not None:
            names = frozenset(grant.name for grant in question.grants)
            for listener in self.on_refused if names else ():
                listener(names, decision.refusal)
            raise decision.refusal
        return Selection(placed=decision.placed, rdma_cm=self._node.cache.current.rdma_cm)

    def rescan(self) -> Future[None]:
        """Have a worker rescan the node; return a future that is done with the scan."""
        return self._node.rescan()

    def release(self, key: str) -> None:
        """Release the devices that are reserved under the key."""
        self._reservations.release(key)

    def question(self, pod: Pod, asker: Asker, grants: tuple[CdiGrant, ...], asked: Asked = NOTHING_ASKED) -> Question:
        """Return the input for `decide`: what the pod and its CDI devices ask for, and the present state of node,
        policy and runtime."""
        question = self._offering.question(str(pod), asker, asked, grants)
        return question if pod.is_listed else replace(question, memlock=MemlockBounds())  # no runtime sets its limit

    def _grants(self, pod: Pod, asked: Asked) -> tuple[CdiGrant, ...]:
        kubelet = self._kubelet
        return (*kubelet.grants(asked.allocation), *kubelet.claims.grants(pod, asked.claimed, asked.allocation))

    def _question(self, pod: Pod, asked: Asked, asker: Asker) -> Question:
        grants = self._grants(pod, asked)
        if asked.gpus is None and grants and asked.allocation is not None:
            asked = replace(asked, gpus=self._kubelet.gpus_of(asked.allocation))
        return self.question(pod, asker, grants, asked)
