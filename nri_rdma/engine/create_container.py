"""CreateContainer: compute a container's edits from memory. This is the hot path; it reads from top to bottom.

Fail closed: a container whose pod asked for devices gets no answer before they are attached.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.granted import lacks
from nri_rdma.decide.inject import AttachedRequest, inject, refuse_conflicts, refuse_two_pools
from nri_rdma.decide.lacking import NO_EVIDENCE, Evidence
from nri_rdma.engine.alignment_check import AlignmentCheck
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.gate import refuse_unasked
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.refusals import being_attached, failed_late, not_attached, not_decided
from nri_rdma.engine.sandbox import Sandboxes
from nri_rdma.engine.specs import SpecCache
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.observe.spans import Recorder
from nri_rdma.text.annotations import asks_for_devices

log = logging.getLogger(__name__)


class ContainerCreation:
    """Answers CreateContainer for every door. Safe for use by several threads."""

    def __init__(
        self,
        attachments: Attachments,
        known: Sandboxes,
        evidence: EvidenceCollector,
        late: LateAttach,
        barrier: Barrier,
        alignment: AlignmentCheck,
        offering: Offering,
        specs: SpecCache,
        node: NodeCache,
        prefix: str,
        spans: Recorder,
    ) -> None:
        """`prefix` is the prefix of nri-rdma's annotations."""
        self._attachments = attachments
        self._known = known
        self._evidence = evidence
        self._late = late
        self._barrier = barrier
        self._alignment = alignment
        self._offering = offering
        self._specs = specs
        self._node = node
        self._prefix = prefix
        self._spans = spans

    def create(self, container: Container, deadline: float) -> ContainerEdits:
        """Return a container's edits, from memory. Attach devices for those of its CDI devices and shares that the
        pod's start did not know. Raise NriRdmaError if its pod asked for devices and has none, or if a device cannot be
        attached by `deadline` (seconds of `time.monotonic`)."""
        holdings = self._attachments.of(container.sandbox_id)
        self._refuse_unserved(container, holdings)  # before CDI devices and shares of the container are attached
        by = self._barrier.by(deadline)  # one deadline for all waits of this call
        if container.shares:
            self._late.refuse_unclear_shares(container)
            shares = Evidence(container=container.name, shares=container.shares)
            holdings = self._late.complete(container, shares, holdings, by)
        evidence, holdings = self._adopt(container, holdings, deadline, by)
        holdings = holdings.concerning(container.name, evidence.cdi_devices)
        self._barrier.await_all(holdings, container.name, by)
        attached = holdings.attached
        requests = [it.admitted.request for it in attached] if evidence.grants else []
        if evidence.grants and lacks(evidence.grants, requests, self._offering.adoption):  # an attach has just failed
            raise being_attached(container.pod, container.name)
        if not holdings:
            return ContainerEdits()
        pod = holdings.pod
        if pod.is_listed:  # otherwise it is podman's or Docker's, and the hook door's own hook asks
            refuse_unasked(container, attached, self._prefix)
        self._alignment.refuse_far(pod, attached, container.name, lambda: container.gpus)
        edits = self._injected(container, holdings, attached)
        if not evidence.is_concerned:
            return edits
        return replace(edits, moved_netdevs=holdings.moved_netdevs(container.net_devices))

    def _refuse_unserved(self, container: Container, holdings: Holdings) -> None:
        """Raise NotReadyError for a container whose pod asks for devices, if the pod has none or their attach
        failed."""
        known = self._known.get(container.sandbox_id)
        if known is not None and known.failure is not None:
            raise failed_late(known.failure.pod, known.failure.why)
        if holdings.own is None and asks_for_devices(container.annotations, self._prefix):
            refusal = not_decided if self._known.is_missed(container.sandbox_id) else not_attached
            raise refusal(container.pod_name)

    def _adopt(self, container: Container, holdings: Holdings, deadline: float, by: float) -> tuple[Evidence, Holdings]:
        """Find out which RDMA devices other programs gave to the container, and attach those that its sandbox lacks.
        Return what was found, and the sandbox's attachments afterwards. Both deadlines are in seconds of
        `time.monotonic`: `deadline` for the first reading of CDI specs, `by` for the rest."""
        if not self._evidence.await_concerned(container, deadline):
            return NO_EVIDENCE, holdings
        with self._spans.span("adopt") as span:
            evidence = self._evidence.of(container, holdings, by)
            names = evidence.cdi_devices
            span.attributes["rdma.cdi_devices"] = ",".join(names)
            span.attributes["rdma.cdi_source"] = ",".join([str(grant.origin) for grant in evidence.grants])
            span.link(self._specs.traces(names))
            self._evidence.refuse_unallocated(container, holdings, evidence.grants)  # what is attached now is allocated
            return evidence, self._late.complete(container, evidence, holdings, by)

    def _injected(
        self, container: Container, holdings: Holdings, attached: tuple[AttachedRequest, ...]
    ) -> ContainerEdits:
        if len(holdings) > 1:  # the devices of a single attachment were checked when it was planned
            refuse_two_pools(attached, container.name, container.env)
        present = container.devices
        with self._spans.span("inject") as span:
            # For a container of podman or Docker the OCI hook door sets the limit, and knows the engine's default.
            memlock = self._offering.memlock.default if holdings.pod.is_listed else None
            rdma_cm, gids = holdings.rdma_cm, holdings.gids
            edits = inject(attached, rdma_cm, container.name, container.env, present, memlock, gids)
            if edits.rdma_max:
                span.attributes["rdma.limits"] = "; ".join(edits.rdma_max)
            if any(node.path in present for node in edits.char_devices):
                self._refuse_conflicts(container, edits)
        return edits

    def _refuse_conflicts(self, container: Container, edits: ContainerEdits) -> None:
        """Raise an error if one of our device nodes has the path at which the container has a node of another RDMA
        device; log a warning if it replaces a stale node."""
        where, devices = f"{container.pod_name}, container {container.name}", self._node.current.devices
        for ours, theirs in refuse_conflicts(edits, container.devices, devices, where):
            log.warning(
                "a device node of the container is replaced by ours",
                extra={
                    "container": where,
                    "path": ours.path,
                    "theirs": f"{theirs[0]}:{theirs[1]}",
                    "ours": f"{ours.major}:{ours.minor}",
                },
            )
