"""Attaches what a container's CDI devices ask for when nothing reported them at pod start.

Law: a container gets all that its CDI devices ask for, an error, or "not yet". What is attached here belongs to its
sandbox, and ends with it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from itertools import chain, count

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.record import Phase, attach_key
from nri_rdma.decide.decision import Question
from nri_rdma.decide.granted import Grant, refuse_unallocated, wanted
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.engine.barrier import Barrier, returning
from nri_rdma.engine.evidence import Brought
from nri_rdma.engine.placer import Asked, Placer
from nri_rdma.engine.sandbox import KEPT_CONTAINERS, LateFailure
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.device import DeviceId
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import LABEL
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
        self._adopter = placer.adopter
        self._barrier = barrier
        self._known = placer.adopter.sandboxes

    def adopt(self, brought: Brought, deadline: float) -> tuple[Grant, ...]:
        """Attach what the CDI devices of a container ask for; return those that concern us. Raise when that fails or is
        not done by the deadline."""
        with self._spans.span("adopt") as span:
            self._adopter.await_known(brought, self._attached_for(brought.pod.sandbox_id), deadline)
            grants = self._adopter.grants(brought, self._attached_for(brought.pod.sandbox_id))
            span.attributes["rdma.cdi_devices"] = ",".join(grant.name for grant in grants)
            span.attributes["rdma.cdi_source"] = ",".join(str(grant.source) for grant in grants)
            self._refuse_unallocated(brought, grants)
            for grant in grants:
                holder = self._holder_of(brought.pod.sandbox_id, grant.name)
                if holder is not None:
                    self._cover(holder, grant, deadline)
            if any(self._holder_of(brought.pod.sandbox_id, grant.name) is None for grant in grants):
                self._attach_late(brought, deadline)
            return grants

    def refuse_lacking(self, pod: Pod, grants: Iterable[Grant], attached: tuple[AttachedRequest, ...]) -> None:
        """Raise NotReadyError where the container's CDI devices ask for something that is not, or no longer, attached
        for it: an attach may have failed a moment ago."""
        for grant in grants:
            if self.lacks((grant,), attached):
                raise self._not_yet(pod, grant.container)

    def lacks(self, grants: Iterable[Grant], attached: tuple[AttachedRequest, ...]) -> bool:
        """Return whether these CDI devices ask for anything that is not attached for their containers."""
        requests = [item.admitted.request for item in attached]
        bare = [
            grant
            for grant in grants
            if not any(it.cdi_device == grant.name and it.scope.covers(grant.container) for it in requests)
        ]
        try:
            return bool(wanted(bare, self._adopter.adoption))
        except NriRdmaError:
            return True

    # -- below -------------------------------------------------------------------------------------------------------

    def _attached_for(self, sandbox_id: str) -> Mapping[str, frozenset[DeviceId]]:
        """Return the CDI devices that something is attached for, with their RDMA devices."""
        found: dict[str, frozenset[DeviceId]] = {}
        for sandbox in self._attachments.of(sandbox_id):
            for item in sandbox.record.attached if sandbox.record is not None else ():
                name = item.admitted.request.cdi_device
                if name:
                    found[name] = found.get(name, frozenset()) | {it.device.id for it in item.devices}
        return found

    def _cover(self, holder: Attachment, grant: Grant, deadline: float) -> None:
        """Cover another container that has the same CDI device."""
        if holder.covers(grant.name, grant.container):
            return
        if holder.state is not Phase.ATTACHED:
            self._pass_barrier(holder, grant.container, deadline)
        covered = self._attachments.cover(holder, grant.name, grant.container)
        if not wait(covered, self._by(deadline) - time.monotonic()):
            raise self._not_yet(holder.pod, grant.container)

    def _pass_barrier(self, sandbox: Attachment, container: str, deadline: float) -> None:
        """Pass the barrier for one attachment. One that failed is being detached, which does not end the sandbox."""
        if sandbox.part and sandbox.ends and not self._known.has_ended(sandbox.pod.sandbox_id):
            raise self._not_yet(sandbox.pod, container)
        self._barrier.await_attached(sandbox, deadline)

    def _attach_late(self, brought: Brought, deadline: float) -> None:
        pod = brought.pod
        own = self._attachments.of(pod.sandbox_id)
        if self._known.has_ended(pod.sandbox_id) or any(it.ends and not it.part for it in own):
            raise returning(pod)
        self._tell_failure(pod, brought.container)
        if not all_settled(self._attachments.end_older(pod), self._by(deadline)):
            raise self._not_yet(pod, brought.container)
        part = self._free_part(pod.sandbox_id, brought.container)

        def question() -> Question:
            grants = self._adopter.grants(brought, self._attached_for(pod.sandbox_id))
            late = tuple(grant for grant in grants if self._holder_of(pod.sandbox_id, grant.name) is None)
            return self._placer.question(pod, brought.asker, Asked(), late)

        placed = self._placer.place(attach_key(pod.sandbox_id, part), pod, question, self._by(deadline))
        if not placed:
            return  # it is observed
        sandbox = self._attachments.begin(pod, placed, self._placer.node.rdma_cm, part)
        if not wait(sandbox.attach_done, self._by(deadline) - time.monotonic()):
            sandbox.attach_done.add_done_callback(lambda done: self._remember(pod, brought.container, done))
            raise self._not_yet(pod, brought.container)

    def _by(self, deadline: float) -> float:
        """Return until when a CreateContainer may wait for an attach: all other pods of the node wait with it."""
        return min(deadline, time.monotonic() + self._barrier.waits.barrier_s)

    def _remember(self, pod: Pod, container: str, done: Future[None]) -> None:
        """Remember the result of an attach whose container was told to retry."""
        error = None if done.cancelled() else done.exception()
        if error is None or self._known.has_ended(pod.sandbox_id):
            return
        failures = self._known.take(pod.sandbox_id).late_failures
        failed = failures.setdefault(container, LateFailure())
        failed.times, failed.why, failed.is_told = failed.times + 1, str(error), False
        if len(failures) > KEPT_CONTAINERS:
            del failures[next(iter(failures))]  # the oldest; the newest one has yet to be reported

    def _tell_failure(self, pod: Pod, container: str) -> None:
        """Report once why the last attempt failed, before the next one; from the last attempt on, report it every
        time."""
        known = self._known.get(pod.sandbox_id)
        failed = known.late_failures.get(container) if known is not None else None
        if failed is None or (failed.is_told and failed.times < ATTEMPTS):
            return
        failed.is_told = True
        is_over = failed.times >= ATTEMPTS
        raise NotReadyError(
            ErrorCode.ATTACH_FAILED,
            "the devices of this container's claim could not be attached, and what was done was undone",
            where=f"{pod}, container {container}",
            hint="delete the pod so that it gets a new sandbox" if is_over else "nothing to do: it is tried again",
            detail=failed.why,
        )

    def _free_part(self, sandbox_id: str, container: str) -> str:
        taken = {sandbox.part for sandbox in self._attachments.of(sandbox_id)}
        part = part_of(container)
        names = chain((part,), (f"{part}.{number}" for number in count(1)))
        return next(name for name in names if name not in taken)

    def _holder_of(self, sandbox_id: str, cdi_device: str) -> Attachment | None:
        """Return the attachment, finished or under way, of the sandbox for a CDI device."""
        return next((it for it in self._attachments.of(sandbox_id) if cdi_device in it.cdi_devices), None)

    def _refuse_unallocated(self, brought: Brought, grants: tuple[Grant, ...]) -> None:
        if brought.is_privileged or not self._adopter.adoption.enforces:
            return
        own = {
            item.device.id
            for sandbox in self._attachments.of(brought.pod.sandbox_id)
            for request in (sandbox.record.attached if sandbox.record is not None else ())
            if request.admitted.request.scope.covers(brought.container)
            for item in request.devices
        }
        refuse_unallocated(
            self._adopter.node,
            brought.devices,
            own | self._adopter.covered(brought, grants),
            self._adopter.vendors,
            self._adopter.adoption,
            f"{brought.pod}, container {brought.container}",
        )

    def _not_yet(self, pod: Pod, container: str) -> NotReadyError:
        return NotReadyError(
            ErrorCode.NOT_READY,
            f"network is not ready: what the CDI devices of container {container} ask for is being attached",
            where=str(pod),
            hint="nothing to do: the kubelet asks again",
        )


def part_of(container: str) -> str:
    """Return the attach key for a container: its name, or a substitute where that cannot be the name of a file."""
    if LABEL.fullmatch(container):
        return container
    return "c." + hashlib.sha256(container.encode(errors="surrogatepass")).hexdigest()[:16]
