"""CreateContainer: compute a container's edits from memory. This is the hot path; it reads from top to bottom.

Fail closed: a container whose pod asked for devices gets no answer before they are attached.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any  # Any: attachments

from nri_rdma.attach.attachments import Attachments
from nri_rdma.decide.inject import inject, refuse_conflicts, refuse_two_pools
from nri_rdma.engine.alignment_check import AlignmentCheck
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container
from nri_rdma.engine.gate import refuse_unasked
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.parts import attached_of, concerned, gids_of, moved_netdevs
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.refusals import failed_late, not_attached, not_decided
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.observe.spans import Recorder
from nri_rdma.text.annotations import asks_for_devices

log = logging.getLogger(__name__)


class ContainerCreation:
    """Answers CreateContainer for every door. Safe for use by several threads."""

    def __init__(
        self,
        attachments: Attachments,
        placer: Placer,
        barrier: Barrier,
        late: LateAttach,
        alignment: AlignmentCheck,
        spans: Recorder,
        attach_shares: Callable[[Container, Any, float], None],
    ) -> None:
        """`attach_shares` attaches what is lacking of a container's shares, beside what its sandbox has."""
        self._attachments = attachments
        self._known = placer.evidence.sandboxes
        self._placer = placer
        self._barrier = barrier
        self._late = late
        self._alignment = alignment
        self._spans = spans
        self._attach_shares = attach_shares

    def create(self, container: Container, deadline: float) -> ContainerEdits:
        """Return a container's edits, from memory. Raise when its pod asked for devices and nothing is attached.

        If the container's CDI devices ask for more than was attached at pod start, that is attached here. Only strict
        requests are checked for GPUs here; the others are checked when the container starts.
        """
        sandbox_id, present = container.sandbox_id, container.devices
        known = self._known.get(sandbox_id)
        if known is not None and known.failure is not None:
            raise failed_late(known.failure.pod, known.failure.why)
        parts = self._attachments.of(sandbox_id)
        if (not parts or parts[0].part) and asks_for_devices(container.annotations, self._placer.prefix):
            # Before anything is attached for the container's CDI devices.
            refusal = not_decided if self._known.is_missed(sandbox_id) else not_attached
            raise refusal(container.pod_name)
        if container.shares:
            self._attach_shares(container, parts, deadline)
            parts = self._attachments.of(sandbox_id)
        # One deadline for all waits of this call.
        by = min(deadline, time.monotonic() + self._barrier.waits.barrier_s)
        has_others = self._placer.evidence.await_concerned(container, deadline)
        grants = self._late.adopt(container, by) if has_others else ()
        if grants:  # its CDI devices have attachments of their own by now
            parts = (*(it for it in parts if not it.part), *(it for it in self._attachments.of(sandbox_id) if it.part))
        parts = concerned(parts, container.name, grants)
        self._barrier.await_all(parts, container.name, by)
        attached, rdma_cm = attached_of(parts)
        if has_others:
            self._late.refuse_lacking(container, grants, attached)
        if not parts:
            return ContainerEdits()
        refuse_unasked(container, parts, attached, self._placer.prefix)
        self._alignment.refuse_far(parts[0].pod, attached, container.name, lambda: container.gpus)
        if len(parts) > 1:  # what one attach gives was looked at when it was decided
            refuse_two_pools(attached, container.name, container.env)
        with self._spans.span("inject") as span:
            # Of a container that no runtime lists its door sets the limit, and knows its own default.
            memlock = self._placer.offering.memlock.default if parts[0].pod.is_listed else None
            edits = inject(attached, rdma_cm, container.name, container.env, present, memlock, gids_of(parts))
            if edits.rdma_max:
                span.attributes["rdma.limits"] = "; ".join(edits.rdma_max)
            for node in edits.char_devices:
                if node.path in present:
                    self._refuse_conflicts(container, edits)
                    break
            return replace(edits, moved_netdevs=moved_netdevs(parts, container.net_devices)) if has_others else edits

    def _refuse_conflicts(self, container: Container, edits: ContainerEdits) -> None:
        """Refuse where our node would hide another RDMA device's; log where it replaces a stale one."""
        where, devices = f"{container.pod_name}, container {container.name}", self._placer.node.cache.current.devices
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
