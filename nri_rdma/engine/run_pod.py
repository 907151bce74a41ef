"""RunPodSandbox: plan what the pod asks for, have it attached, and answer.

Fail closed: what cannot be given is refused with an error. An attach that outlives the deadline goes on; its containers
wait at the barrier.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial

from nri_rdma.attach.attachment import Again, Attachment, Selection
from nri_rdma.attach.attachments import ATTEMPTS, Attachments
from nri_rdma.engine.asking import Asked
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.promises import Promises
from nri_rdma.engine.refusals import RefusedLately, refuse_unusable_id, returning
from nri_rdma.engine.sandbox import LifeEvent, Unserved
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.tasks.waiting import all_settled, wait

_OLDER_S = 60.0
"""How long a planner may wait for a fresh scan of the node once the pod's previous sandbox has been detached."""


class PodStart:
    """Starts pods, whichever door they come through. Safe for use by several threads."""

    def __init__(
        self,
        attachments: Attachments,
        placer: Placer,
        barrier: Barrier,
        refused: RefusedLately,
        promises: Promises,
        refuse_unhooked: Callable[[Pod, str, Asker, float], None],
    ) -> None:
        """`refuse_unhooked` raises NriRdmaError for a pod whose request at a place is to be proven and whose runtime
        handler has no guard."""
        self._attachments = attachments
        self._known = placer.evidence.sandboxes
        self._placer = placer
        self._barrier = barrier
        self.refused = refused
        self.promises = promises
        self._refuse_unhooked = refuse_unhooked
        self._lock = threading.Lock()

    def run(
        self,
        pod: Pod,
        annotations: Mapping[str, str],
        deadline: float,
        asker: Asker,
        on_planned: Callable[[], None] | None = None,
    ) -> None:
        """Give the pod what it asks for, or raise. An attach that outlives the deadline goes on; the pod's containers
        wait for it.

        `on_planned` is called once at most, when the plan is made: by the thread that made it, so that the pod can be
        answered for before the caller's thread is awake, or by the caller; perhaps after `run` has returned, when the
        deadline has passed. It is not called for a refusal, for a sandbox that waits for an older one, and where the
        settings let a sandbox wait for its attach.
        """
        try:
            self._run(pod, annotations, deadline, asker, on_planned)
        except NriRdmaError as error:
            self.refused.note("RunPodSandbox" if pod.is_listed else "createRuntime", pod, error)
            raise

    def _run(
        self,
        pod: Pod,
        annotations: Mapping[str, str],
        deadline: float,
        asker: Asker,
        on_planned: Callable[[], None] | None,
    ) -> None:
        self._placer.await_specs(pod, deadline)
        asked = self._placer.asked(pod, annotations)
        if asked is None:
            return
        refuse_unusable_id(pod)
        with self._lock:
            known = self._attachments.of(pod.sandbox_id)
            if any(it.now.ends for it in known):
                raise returning(pod)
            if known or not self._known.step(pod.sandbox_id, LifeEvent.RUN):
                return  # seen already, in Synchronize: the runtime may deliver a sandbox's events twice
            self._known.take(pod.sandbox_id).failure = None  # of an attempt before the runtime restarted
        try:
            sandbox = self._begin(pod, asked, deadline, asker)
        finally:
            self._known.step(pod.sandbox_id, LifeEvent.RAN)
        if asked.allocation is not None:  # not before: of a pod that was refused the next sandbox is asked about, too
            self._placer.evidence.kubelet.shares.matched(asked.allocation)
        if sandbox is not None:
            self._await_start(sandbox, deadline, on_planned)

    def _begin(self, pod: Pod, asked: Asked, deadline: float, asker: Asker) -> Attachment | None:
        """Begin to attach the selected devices. Return None when there are none: what the kubelet allocated is only
        observed."""

        where = self._placer.offering.proven(asked)
        if where and pod.is_listed:  # else its hook is the one that asks
            self._refuse_unhooked(pod, where, asker, deadline)

        def choose(by: float | None) -> Selection:
            placed = self._placer.choose(pod, asked, asker, by)
            return Selection(placed=placed, rdma_cm=self._placer.node.cache.current.rdma_cm)

        again = Again(read=self._placer.node.rescan, choose=lambda: choose(None))
        attempts = 1 if self._barrier.waits.blocking else ATTEMPTS
        older = self._attachments.end_older(pod)
        if older and not all_settled(older, min(deadline, time.monotonic() + self._barrier.waits.barrier_s)):
            return self._attachments.begin_after(
                older, pod, lambda: choose(time.monotonic() + _OLDER_S), attempts, again
            )
        promised = self.promises.redeem(pod.sandbox_id)
        if promised is not None:  # its container was made for these devices: no attempt may choose others
            return self._attachments.begin(pod, promised.placed, promised.rdma_cm, attempts=attempts)
        chosen = choose(deadline)
        if not chosen.placed:
            return None
        return self._attachments.begin(pod, chosen.placed, chosen.rdma_cm, attempts=attempts, again=again)

    def _await_start(self, sandbox: Attachment, deadline: float, on_planned: Callable[[], None] | None) -> None:
        """Wait for the plan, which may refuse the pod, and for the attach as long as the settings say. A later failure
        is reported to the pod's containers."""
        now, waits = time.monotonic(), self._barrier.waits
        plan_by = now if sandbox.waits_for_older else deadline
        by = deadline if waits.blocking else min(deadline, now + waits.sandbox_s)
        if waits.blocking and not sandbox.waits_for_older:  # the attach tells the plan's refusal, too
            is_done = wait(sandbox.attach_done, by - now)
        elif waits.blocking or waits.sandbox_s:
            is_done = wait(sandbox.planned, plan_by - now) and wait(sandbox.attach_done, by - time.monotonic())
        else:
            if on_planned is not None and not sandbox.waits_for_older:
                sandbox.planned.add_done_callback(partial(_plan_is_made, [on_planned]))
            # Raises the refusal. From here on nothing else may raise: perhaps the runtime has its answer.
            wait(sandbox.planned, plan_by - now)
            is_done = False
        if not is_done:
            # Bind the pod, not the attachment: its own future would keep it alive until a garbage collection.
            sandbox.attach_done.add_done_callback(partial(self.remember_failure, sandbox.pod))

    def remember_failure(self, pod: Pod, done: Future[None]) -> None:
        """Remember the failure of an attach that went on after RunPodSandbox was answered, to report it to the pod's
        containers."""
        error = None if done.cancelled() else done.exception()
        is_ended = any(it.now.ends and not it.now.is_given_up for it in self._attachments.of(pod.sandbox_id))
        if error is None or is_ended or (isinstance(error, NriRdmaError) and error.code is ErrorCode.RETURNING):
            return  # the attach succeeded, or the sandbox is being detached anyway
        if self._known.is_over(pod.sandbox_id):
            return  # no event would end what is remembered now
        self._known.take(pod.sandbox_id).failure = Unserved(pod=pod, why=str(error))


def _plan_is_made(told: list[Callable[[], None]], planned: Future[None]) -> None:
    """Tell the one that waits, unless the plan is a refusal; and let go of it, since a future that is kept keeps its
    callbacks."""
    on_planned = told.pop()
    if not planned.cancelled() and planned.exception() is None:
        on_planned()
