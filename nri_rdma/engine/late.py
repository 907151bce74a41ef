"""Attaches what a container's CDI devices ask for when nothing reported them at pod start.

Law: a container gets all that its CDI devices ask for, an error, or "not yet". What is attached here belongs to its
sandbox, and ends with it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.cdi.grants import Attached, CdiGrant
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container
from nri_rdma.engine.parts import attached_for, devices_of, free_key, holder_of
from nri_rdma.engine.placer import Placer, PresentQuestion
from nri_rdma.engine.refusals import being_attached, late_attach_failed, returning
from nri_rdma.model.pod import Pod
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import all_settled, wait

ATTEMPTS = 3
"""How often a late attach is tried for a container; then its last error stands."""


class LateAttach:
    """Called by the runtime's reader, one container at a time."""

    def __init__(self, attachments: Attachments, spans: Recorder, placer: Placer, barrier: Barrier) -> None:
        self._attachments = attachments
        self._spans = spans
        self._placer = placer
        self._evidence = placer.evidence
        self._barrier = barrier
        self._known = placer.evidence.sandboxes

    def adopt(self, container: Container, deadline: float) -> tuple[CdiGrant, ...]:
        """Attach what the CDI devices of a container ask for; return those that concern us. Raise when that fails or is
        not done by the deadline."""
        with self._spans.span("adopt") as span:
            self._evidence.await_known(container, self._attached_for(container.sandbox_id), deadline)
            parts = self._attachments.of(container.sandbox_id)
            grants = self._evidence.grants(container, attached_for(parts))
            span.attributes["rdma.cdi_devices"] = ",".join(grant.name for grant in grants)
            span.link(self._evidence.traces(grants))
            span.attributes["rdma.cdi_source"] = ",".join(str(grant.origin) for grant in grants)
            self._evidence.refuse_unallocated(container, devices_of(parts, container.name), grants)
            for name in self._evidence.withheld(container):
                self._uncover(parts, name, container.name, deadline)
            holders = [(grant, holder_of(parts, grant)) for grant in grants]
            for grant, holder in holders:
                if holder is not None:
                    self.cover(holder, grant.name, grant.container, deadline)
            if any(holder is None for _, holder in holders):
                self._attach_late(container, parts, deadline)
            return grants

    def await_older(self, container: Container, parts: tuple[Attachment, ...], deadline: float) -> float:
        """Wait until an older sandbox of the container's pod has given its devices back. Return until when this call
        may wait. Raise where the sandbox has ended, the last attach for the container failed, or it takes too long."""
        pod, by = container.pod, self._by(deadline)
        if self._known.has_ended(pod.sandbox_id) or any(it.now.ends and not it.part for it in parts):
            raise returning(pod)
        self._report_failure(pod, container.name)
        if not all_settled(self._attachments.end_older(pod), by):
            raise being_attached(pod, container.name)
        return by

    def attach_part(self, container: Container, parts: tuple[Attachment, ...], ask: PresentQuestion, by: float) -> None:
        """Place and attach what a container asks for besides, as a part of its sandbox; nothing is attached where that
        is only observed. `ask` is called again before a refusal. Raise when it fails or is not done by then."""
        pod = container.pod
        part, key = free_key(pod.sandbox_id, parts, container.name)
        self._placer.node.await_ports(by)
        placed = self._placer.place(key, pod, ask(), ask, by)
        if not placed:
            return  # it is observed
        rdma_cm = self._placer.node.cache.current.rdma_cm
        attachment = self._attachments.begin(pod, placed, rdma_cm, part)
        if not wait(attachment.attach_done, by - time.monotonic()):
            attachment.attach_done.add_done_callback(lambda done: self._remember(pod, container.name, done))
            raise being_attached(pod, container.name)

    def cover(self, holder: Attachment, name: str, container: str, deadline: float) -> None:
        """Cover another container that has the same CDI device, or the same share, by its name."""
        if holder.covers(name, container):
            return
        self._pass_barrier(holder, container, deadline)
        covered = self._attachments.cover(holder, name, container)
        if not wait(covered, self._by(deadline) - time.monotonic()):
            raise being_attached(holder.pod, container)

    def refuse_lacking(
        self, container: Container, grants: Iterable[CdiGrant], attached: tuple[AttachedRequest, ...]
    ) -> None:
        """Raise NotReadyError where the container's CDI devices ask for something that is not, or no longer, attached
        for it: an attach may have failed a moment ago."""
        if self._evidence.lacks(grants, attached):
            raise being_attached(container.pod, container.name)

    # -- below -------------------------------------------------------------------------------------------------------

    def _attached_for(self, sandbox_id: str) -> Attached:
        return attached_for(self._attachments.of(sandbox_id))

    def _uncover(self, parts: Iterable[Attachment], name: str, container: str, deadline: float) -> None:
        """Take a container out of what is attached for a CDI device that it was not given."""
        for holder in parts:
            if name not in holder.now.cdi_devices:
                continue
            self._pass_barrier(holder, container, deadline)
            if holder.covers(name, container):
                changed = self._attachments.cover(holder, name, container, is_covered=False)
                if not wait(changed, self._by(deadline) - time.monotonic()):
                    raise being_attached(holder.pod, container)

    def _pass_barrier(self, holder: Attachment, container: str, deadline: float) -> None:
        """Pass the barrier for one attachment. One that failed is being detached, which does not end the sandbox."""
        if holder.part and holder.now.ends and not self._known.has_ended(holder.pod.sandbox_id):
            raise being_attached(holder.pod, container)
        self._barrier.await_attached(holder, deadline)

    def _attach_late(self, container: Container, parts: tuple[Attachment, ...], deadline: float) -> None:
        by = self.await_older(container, parts, deadline)  # whose devices are on the host again
        self.attach_part(
            container,
            parts,
            lambda: self._placer.question(container.pod, container.asker, self._late_now(container)),
            by,
        )

    def _late_now(self, container: Container) -> tuple[CdiGrant, ...]:
        """Return the CDI devices of the container for which nothing is attached or being attached."""
        parts = self._attachments.of(container.sandbox_id)
        grants = self._evidence.grants(container, attached_for(parts))
        return tuple(grant for grant in grants if holder_of(parts, grant) is None)

    def _by(self, deadline: float) -> float:
        """Return until when a CreateContainer may wait for an attach: all other pods of the node wait with it."""
        return min(deadline, time.monotonic() + self._barrier.waits.barrier_s)

    def _remember(self, pod: Pod, container: str, done: Future[None]) -> None:
        """Remember the result of an attach whose container was told to retry."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not self._known.has_ended(pod.sandbox_id):
            self._known.take(pod.sandbox_id).remember_late_failure(container, str(error))

    def _report_failure(self, pod: Pod, container: str) -> None:
        """Report once why the last attempt failed, before the next one; from the last attempt on, report it every
        time."""
        known = self._known.get(pod.sandbox_id)
        failed = known.late_failures.get(container) if known is not None else None
        if failed is None or (failed.is_told and failed.times < ATTEMPTS):
            return
        failed.is_told = True
        raise late_attach_failed(pod, container, failed.why, is_over=failed.times >= ATTEMPTS)
