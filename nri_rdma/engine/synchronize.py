"""Compares the engine's sandboxes with the runtime's list of pods: which pods ended unnoticed, which started unnoticed,
and which run without their devices.

The list comes with the runtime's call Synchronize. The call is answered at once, and a worker compares afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TypeAlias

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.engine.container import Listed, Start
from nri_rdma.engine.pod_claims import PodClaims
from nri_rdma.engine.sandbox import LifeEvent, Sandboxes, Unserved
from nri_rdma.engine.specs import SpecCache
from nri_rdma.engine.verifier import Verifier
from nri_rdma.errors import NotReadyError, NriRdmaError
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.annotations import asks

log = logging.getLogger(__name__)

_SPECS_S = 60.0
"""How long the worker waits until the CDI specs are read, in seconds. After it the worker goes on without them."""
_MISSED_S = 10.0
"""The time to start a missed pod, in seconds. An attach that takes longer goes on in the background."""
_TAKEN_UP_S = 60.0
"""How long the worker waits for each attachment of an earlier daemon to be adopted or undone, in seconds."""


StartPod: TypeAlias = Callable[[Start, float], None]
"""Starts a pod, with a deadline in seconds of `time.monotonic`. Raises NriRdmaError."""


class Synchronizer:
    """Compares the engine's sandboxes with the runtime's list of pods. `reconcile_later` is called by the thread that
    reads the runtime's events; everything else runs in a worker."""

    def __init__(
        self,
        attachments: Attachments,
        workers: Workers,
        spans: Recorder,
        known: Sandboxes,
        specs: SpecCache,
        claims: PodClaims,
        verifier: Verifier,
        prefix: str,
        start: StartPod,
    ) -> None:
        """`prefix` is the prefix of nri-rdma's annotations; `start` starts a pod whose RunPodSandbox was missed."""
        self._attachments = attachments
        self._workers = workers
        self._spans = spans
        self._known = known
        self._specs = specs
        self._claims = claims
        self._verifier = verifier
        self._prefix = prefix
        self._start = start
        self.count = 0
        """The number of pods that were found running without the devices that they ask for, since this daemon
        started."""

    def _decide_no_more(self) -> None:
        """Mark all sandboxes whose start was missed as decided, so that their containers stop waiting for devices."""
        for known in self._known.all():
            self._known.step(known.sandbox_id, LifeEvent.DECIDED)

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """Have a worker run `reconcile`; return a future that is done with it. Call it before the runtime's next event
        is handled."""
        known = self._attachments.all()
        unlisted = {it.pod.sandbox_id for it in known if not it.pod.is_listed}
        self._known.keep({item.pod.sandbox_id for item in pods} | unlisted)
        for item in pods:  # now and not in the worker: a container that is created next must overwrite this path
            sandbox = next(iter(self._attachments.of(item.pod.sandbox_id)), None)
            if sandbox is not None:
                for container in item.containers:
                    sandbox.containers.remember(container.name, container.cgroups_path)
        self._claims.note_listed(item.pod for item in pods)
        self._decide_no_more()
        for item in pods:
            if self._was_missed(item):
                self._known.step(item.pod.sandbox_id, LifeEvent.MISS)
        done = self._workers.submit("reconcile", lambda: self.reconcile(pods, known))
        done.add_done_callback(self._ended)
        return done

    def _ended(self, done: Future[None]) -> None:
        """Mark the sandboxes whose start was missed as decided once the comparison `done` has ended, so that no
        container waits for it. Log the error if the comparison failed."""
        self._decide_no_more()
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.error("the comparison with the runtime's pods failed", exc_info=error)

    def reconcile(self, pods: Collection[Listed], known: Collection[Attachment]) -> None:
        """Compare the engine's sandboxes with the runtime's list of pods. Blocks, so only a worker may call it.

        `known` are the attachments that existed when the list was made. Only these can be missing from the list; newer
        ones are not expected in it.
        """
        listed = {item.pod.sandbox_id for item in pods}
        for sandbox in known:
            if sandbox.pod.is_listed and sandbox.pod.sandbox_id not in listed:
                log.info("sandbox is gone, returning its devices", extra={"pod": str(sandbox.pod)})
                self._attachments.end(sandbox.pod.sandbox_id)
        for sandbox in known:
            if sandbox.taken_up is not None:
                settled(sandbox.taken_up, _TAKEN_UP_S)
        self._await_specs()
        for item in pods:
            if self._known.is_missed(item.pod.sandbox_id):
                self._start_missed(item)
        for item in pods:
            self._verifier.remember_alignments(item)
        self._report(
            {item.pod.sandbox_id: unserved for item in pods if (unserved := self._verifier.unserved(item)) is not None}
        )

    def _report(self, unserved: dict[str, Unserved]) -> None:
        """Remember and report the pods that run without their devices, by sandbox id. A pod with the same reason as
        before is not reported again."""
        for known in self._known.all():
            if known.unserved is not None and known.sandbox_id not in unserved:
                known.unserved = None
        for sandbox_id, item in unserved.items():
            if self._known.is_over(sandbox_id):  # it was stopped since the list was made
                continue
            known = self._known.take(sandbox_id)
            before, known.unserved = known.unserved, item
            if before != item:
                self._attachments.watch_end(item.pod)
                self._tell_unserved(item, is_new=before is None)

    def _tell_unserved(self, unserved: Unserved, *, is_new: bool) -> None:
        """Report a pod that runs without its devices, in the log and as a span. `is_new`: count it."""
        pod = unserved.pod
        self.count += is_new
        attributes = {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
        with self._spans.span("unserved", attributes) as span:
            span.attributes["reason"] = span.error = unserved.why
        log.warning("pod runs without what it asks for", extra={"pod": str(pod), "why": unserved.why})

    def _await_specs(self) -> None:
        """Wait until the CDI specs are read. Without them it would not be noticed that a container lacks devices for
        its CDI devices."""
        try:
            self._specs.await_ready(None, time.monotonic() + _SPECS_S)
        except NotReadyError as error:
            log.warning("pods are compared without CDI specs", extra={"error": str(error)})

    def _was_missed(self, item: Listed) -> bool:
        """Return whether a pod started while the daemon was not connected and can still get its devices: it asks for
        devices, has none, and none of its containers has run."""
        return (
            not any(it.has_run for it in item.containers)
            and bool(item.pod.netns_path or item.pod.pid)  # a stopped sandbox has neither
            and asks(item.annotations, self._prefix)
            and not self._attachments.knows(item.pod.sandbox_id)
        )

    def _start_missed(self, item: Listed) -> None:
        """Give a missed pod the devices that it would have got at its start. If it is refused, its containers are
        refused when they are created."""
        sandbox_id = item.pod.sandbox_id
        missed = self._known.get(sandbox_id)
        try:
            if self._attachments.is_there(item.pod):
                log.info("the pod started while nri-rdma was not connected", extra={"pod": str(item.pod)})
                start = Start.of(item.pod, item.annotations, item.asker, self._prefix, self._spans)
                self._start(start, time.monotonic() + _MISSED_S)
                if self._known.get(sandbox_id) is not missed:  # it stopped meanwhile, and had nothing to return then
                    self._attachments.end(sandbox_id)
        except NriRdmaError as error:
            log.warning("the pod gets no devices", extra={"pod": str(item.pod), "error": str(error)})
        finally:
            self._known.step(sandbox_id, LifeEvent.DECIDED)
