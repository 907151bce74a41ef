"""The interface for doors: one engine serves every door. The steps are in run_pod, create_container and synchronize.

Fail closed: what cannot be given is refused with an error, and a container whose pod asked for devices gets no edits
before they are attached. Calls have a deadline in seconds of `time.monotonic` and return before it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial

from nri_rdma.attach.attachment import attached_of
from nri_rdma.attach.attachments import Attachments
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.alignment_check import AlignmentCheck, Show
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.create_container import ContainerCreation
from nri_rdma.engine.evidence import Brought
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.limiter import Limiter, Limits
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.run_pod import PodStart
from nri_rdma.engine.sandbox import LifeEvent, Unserved
from nri_rdma.engine.synchronize import Listed, Synchronizer
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

_TOLD_ANSWERS = 2
"""The kubelet recreates a container whose last start failed: the repeated answer is logged once."""


class Engine:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        placer: Placer,
        attachments: Attachments,
        workers: Workers,
        spans: Recorder,
        limits: Limits,
        waits: Waits = Waits(),  # noqa: B008 - frozen
    ) -> None:
        known = placer.adopter.sandboxes
        known.is_attached = attachments.knows
        self.placer = placer
        self.adopter = placer.adopter
        self._attachments = attachments
        self._known = known
        self._barrier = Barrier(attachments, known, spans, waits)
        self._limiter = Limiter(limits, spans)
        self._alignment = AlignmentCheck(placer.adopter, spans)
        self._late = LateAttach(attachments, spans, placer, self._barrier)
        self._pods = PodStart(attachments, known, placer, self._barrier)
        self._containers = ContainerCreation(
            attachments, known, placer, self._barrier, self._late, self._alignment, spans
        )
        self.synchronizer = Synchronizer(attachments, workers, spans, placer, self._late, self._limiter, self._pods.run)

    @property
    def waits(self) -> Waits:
        """Return how long a runtime is kept waiting."""
        return self._barrier.waits

    @waits.setter
    def waits(self, waits: Waits) -> None:
        self._barrier.waits = waits

    @property
    def unserved(self) -> tuple[Unserved, ...]:
        """Return the pods that ask for devices and run, or wait, without them."""
        found = (it for known in self._known.all() for it in (known.unserved, known.failure))
        return tuple(it for it in found if it is not None)

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod with these annotations asks us for anything."""
        return self.placer.asks(annotations)

    def run_pod(self, pod: Pod, annotations: Mapping[str, str], deadline: float, asker: Asker) -> None:
        """Give the pod what it asks for, or raise. An attach that outlives the deadline goes on; the pod's containers
        wait for it."""
        self._pods.run(pod, annotations, deadline, asker)

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the sandbox has attachments."""
        return self._attachments.knows(sandbox_id)

    def remembers(self, sandbox_id: str) -> bool:
        """Return whether the end of the sandbox has to be handled: it has attachments, or lacks what it asks for."""
        known = self._known.get(sandbox_id)
        lacks = known is not None and (known.unserved is not None or known.failure is not None)
        return lacks or self.knows(sandbox_id)

    def create_container(
        self,
        sandbox_id: str,
        pod_name: str,
        annotations: Mapping[str, str],
        container: str,
        present_env: Collection[str],
        present_devices: Mapping[str, tuple[int, int]],
        deadline: float,
        brought: Brought | None = None,
        shown: Show | None = None,
    ) -> ContainerEdits:
        """Return a container's edits, from memory. Raise when its pod asked for devices and nothing is attached.

        `brought`: RDMA devices that the container already has from CDI or a device plugin, or None. If their spec asks
        for more and it was not attached at pod start, it is attached here. `shown` returns the container's GPU
        evidence; None: the node has no GPUs. Only strict requests are checked here; the others are checked when the
        container starts.
        """
        return self._containers.create(
            sandbox_id, pod_name, annotations, container, present_env, present_devices, deadline, brought, shown
        )

    def container_created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """Record that CreateContainer of this container is being answered. `status` shows the container's use while its
        cgroup exists, and shows it as not started until it starts."""
        sandbox = next(iter(self._attachments.of(sandbox_id)), None)
        if sandbox is None:
            return
        sandbox.remember_container(container, cgroups_path)
        if sandbox.answered(container) == _TOLD_ANSWERS:
            log.warning(
                "the container did not start after our last answer: somebody else refused it",
                extra={"pod": str(sandbox.pod), "container": container, "next": "see the events of the pod"},
            )

    def start_container(self, sandbox_id: str, container: str, cgroups_path: str, shown: Show | None = None) -> None:
        """Write the limits that the runtime was not given: the container's cgroup exists and its process does not run
        yet. `shown` returns its GPU evidence, as for `create_container`. Raise LimitsError, or PlacementError where a
        strict request does not fit the GPUs."""
        parts = self._attachments.of(sandbox_id)
        if parts:
            parts[0].started(container)
            self._limiter.limit_all(parts, container, cgroups_path)
            if shown is not None:
                self._alignment.check(parts[0].pod, attached_of(parts)[0], container, shown())

    def stop_pod(self, sandbox_id: str, deadline: float) -> None:
        """Detach everything, as far as the deadline allows; the rest continues in the background. Never raises."""
        self.forget(sandbox_id)
        was_ending = all(sandbox.ends for sandbox in self._attachments.of(sandbox_id))
        undo = self._attachments.end(sandbox_id)
        if undo is None:
            return
        by = min(deadline, time.monotonic() + self.waits.barrier_s) if was_ending else deadline
        try:
            undo.result(max(0.0, by - time.monotonic()))
        except (FutureTimeoutError, CancelledError):
            log.warning("undo goes on after the answer", extra={"sandbox": sandbox_id})

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox that was stopped, whether it had attachments or not."""
        self._known.step(sandbox_id, LifeEvent.STOP)

    def recovered(self) -> None:
        """Handle that the journals of an earlier daemon were read, and their attachments not yet adopted. An attach
        that is retried and fails for good is reported to its containers."""
        for sandbox in self._attachments.all():
            sandbox.attach_done.add_done_callback(partial(self._pods.remember_failure, sandbox.pod))

    def synchronize(self, pods: Collection[Listed]) -> Future[None]:
        """Compare with the runtime's list of pods, in a worker. To be called before the runtime's next event."""
        return self.synchronizer.reconcile_later(pods)
