"""RunPodSandbox: select devices for the pod's requests, have them attached, and answer.

Fail closed: a request that cannot be fulfilled is refused with an error. An attach that is not done by the deadline
goes on, and the pod's containers wait for it at the barrier.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.attachment import Again, Attachment, Selection
from nri_rdma.attach.attachments import ATTEMPTS, Attachments
from nri_rdma.engine.asking import Asked
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Start
from nri_rdma.engine.gate import Gate
from nri_rdma.engine.kubelet import KubeletEvidence
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.promises import Promises
from nri_rdma.engine.refusals import refuse_unusable_id, returning
from nri_rdma.engine.sandbox import LifeEvent, Sandboxes, Unserved
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import all_settled, wait

_OLDER_S = 60.0
"""How long the plan of a pod may wait for a rescan of the node, after the devices of the pod's previous sandbox were
returned."""


class PodStart:
    """Starts pods for every door. Thread-safe."""

    def __init__(
        self,
        attachments: Attachments,
        known: Sandboxes,
        offering: Offering,
        placer: Placer,
        kubelet: KubeletEvidence,
        gate: Gate,
        barrier: Barrier,
        promises: Promises,
    ) -> None:
        self._attachments = attachments
        self._known = known
        self._offering = offering
        self._placer = placer
        self._kubelet = kubelet
        self._gate = gate
        self._barrier = barrier
        self._promises = promises
        self._lock = threading.Lock()

    def run(self, start: Start, deadline: float) -> None:
        """Give the pod the devices that it asks for, or raise the error that refuses it. An attach that is not done by
        the deadline goes on, and the pod's containers wait for it."""
        pod = start.pod
        if start.problem is not None:
            raise start.problem
        self._placer.await_specs(pod, deadline)
        asked = self._placer.asked(pod, start.request)
        if asked is None:
            return
        refuse_unusable_id(pod)
        with self._lock:
            known = self._attachments.of(pod.sandbox_id)
            if any(it.now.ends for it in known):
                raise returning(pod)
            if known or not self._known.step(pod.sandbox_id, LifeEvent.RUN):
                return  # handled in Synchronize already: the runtime may deliver a sandbox's events twice
            self._known.take(pod.sandbox_id).failure = None  # the failure of an attempt before the runtime restarted
        try:
            sandbox = self._begin(start, asked, deadline)
        finally:
            self._known.step(pod.sandbox_id, LifeEvent.RAN)
        if asked.allocation is not None:  # only now: after a refusal the kubelet is asked about the next sandbox, too
            self._kubelet.shares.matched(asked.allocation)
        if sandbox is not None:
            self._await_start(sandbox, deadline)

    def _begin(self, start: Start, asked: Asked, deadline: float) -> Attachment | None:
        """Select devices and begin to attach them. Return None if no device is to be attached, because the setting
        `adopt` says that devices which the kubelet allocated are only reported."""
        pod = start.pod
        where = self._offering.proven(asked)
        if where and pod.is_listed:  # a container of podman or Docker has a hook that asks for the proof
            self._gate.refuse_unhooked(pod, where, start.asker, deadline)

        def choose(by: float | None) -> Selection:
            return self._placer.choose(pod, asked, start.asker, by)

        again = Again(read=self._placer.rescan, choose=lambda: choose(None))
        attempts = 1 if self._barrier.waits.blocking else ATTEMPTS
        older = self._attachments.end_older(pod)
        if older and not all_settled(older, self._barrier.by(deadline)):
            return self._attachments.begin_after(
                older, pod, lambda: choose(time.monotonic() + _OLDER_S), ATTEMPTS, again
            )
        promised = self._promises.redeem(pod.sandbox_id)
        if promised is not None:  # its container was created for these devices: no attempt may choose other devices
            return self._attachments.begin(pod, promised.placed, promised.rdma_cm, attempts=attempts)
        chosen = choose(deadline)
        if not chosen.placed:
            return None
        return self._attachments.begin(pod, chosen.placed, chosen.rdma_cm, attempts=attempts, again=again)

    def _await_start(self, sandbox: Attachment, deadline: float) -> None:
        """Wait for the plan, which may refuse the pod, and then for the attach, for as long as the settings say. A
        failure after that time is reported to the pod's containers."""
        now, waits = time.monotonic(), self._barrier.waits
        by = deadline if waits.blocking else min(deadline, now + waits.sandbox_s)
        if waits.blocking and not sandbox.waits_for_older:  # an error of the plan is also the error of the attach
            is_done = wait(sandbox.attach_done, by - now)
        else:
            is_planned = wait(sandbox.planned, (now if sandbox.waits_for_older else deadline) - now)
            is_done = is_planned and by > now and wait(sandbox.attach_done, by - time.monotonic())
        if not is_done:
            # Bind the pod, not the attachment: its future would keep the attachment alive until a garbage collection.
            sandbox.attach_done.add_done_callback(partial(self.remember_failure, sandbox.pod))

    def remember_failure(self, pod: Pod, done: Future[None]) -> None:
        """Remember the failure of an attach that went on after RunPodSandbox was answered, to report it to the pod's
        containers."""
        error = None if done.cancelled() else done.exception()
        is_ended = any(it.now.ends and not it.now.is_given_up for it in self._attachments.of(pod.sandbox_id))
        if error is None or is_ended or (isinstance(error, NriRdmaError) and error.code is ErrorCode.RETURNING):
            return  # the attach succeeded, or the sandbox is being detached anyway
        if self._known.is_over(pod.sandbox_id):
            return  # the sandbox has stopped already: no event would remove a failure that is remembered now
        self._known.take(pod.sandbox_id).failure = Unserved(pod=pod, why=str(error))
