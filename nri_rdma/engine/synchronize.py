"""Compares with the runtime's list of pods: which ended unnoticed, which were missed, which run without their devices.

The list comes with Synchronize, which is answered at once; a worker compares.
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
"""How long a worker waits until the CDI specs are read; then it goes on without them."""
_MISSED_S = 10.0
"""Deadline for deciding about a pod that started while nobody listened; an attach that outlives it goes on."""
_TAKEN_UP_S = 60.0
"""How long a worker waits until an earlier daemon's attachments are adopted or undone; then it goes on."""


StartPod: TypeAlias = Callable[[Start, float], None]
"""Starts a pod, with a deadline in seconds of `time.monotonic`. Raises NriRdmaError."""


class Synchronizer:
    """Compares the pods. `reconcile_later` is called by the runtime's reader; the rest runs in a worker."""

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
        """`prefix` is that of our annotations; `start` starts a pod that was missed."""
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
        """How many pods were found, since this daemon started, that had started without what they ask for."""

    def _decide_no_more(self) -> None:
        """Give up deciding about missed sandboxes that are still undecided."""
        for known in self._known.all():
            self._known.step(known.sandbox_id, LifeEvent.DECIDED)

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """Run `reconcile` in a worker. To be called before the runtime goes on to the next event."""
        known = self._attachments.all()
        unlisted = {it.pod.sandbox_id for it in known if not it.pod.is_listed}
        self._known.keep({item.pod.sandbox_id for item in pods} | unlisted)
        for item in pods:  # here, in the order of events: a container that is made next has a newer path
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
        """Log a bug in the comparison, and release the containers that wait for it."""
        self._decide_no_more()
        error = None if done.cancelled() else done.exception()
        if error is not None:
            log.error("the runtime's pods were not compared to their end", exc_info=error)

    def reconcile(self, pods: Collection[Listed], known: Collection[Attachment]) -> None:
        """Compare with the runtime's list of pods. Blocks: for a worker, after the runtime has its answer.

        `known` are the attachments that existed when the list was made: a newer one is not missing from it.
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
            {
                item.pod.sandbox_id: Unserved(pod=item.pod, why=why)
                for item in pods
                if (why := self._verifier.why_unserved(item))
            }
        )

    def _report(self, unserved: dict[str, Unserved]) -> None:
        """Report the pods that run without their devices, by sandbox; one that was reported before is not reported
        again."""
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
        """Report a pod once per reason: a log line, a span, and one more in the count."""
        pod = unserved.pod
        self.count += is_new
        attributes = {"k8s.pod.name": str(pod), "k8s.pod.uid": pod.uid, "sandbox": pod.sandbox_id}
        with self._spans.span("unserved", attributes) as span:
            span.attributes["reason"] = span.error = unserved.why
        log.warning("pod runs without what it asks for", extra={"pod": str(pod), "why": unserved.why})

    def _await_specs(self) -> None:
        """Wait, in a worker, for the specs: without them a container's missing CDI devices are not seen."""
        try:
            self._specs.await_ready(None, time.monotonic() + _SPECS_S)
        except NotReadyError as error:
            log.warning("pods are looked at without CDI specs", extra={"error": str(error)})

    def _was_missed(self, item: Listed) -> bool:
        """Return whether a pod asks, has nothing, and has no container that runs without it: it started while nobody
        listened."""
        return (
            not any(it.has_run for it in item.containers)
            and bool(item.pod.netns_path)  # of one that has stopped, and of one on the host's network, nothing is told
            and asks(item.annotations, self._prefix)
            and not self._attachments.knows(item.pod.sandbox_id)
        )

    def _start_missed(self, item: Listed) -> None:
        """Give a pod what it would have got at its start. A refusal is reported to its containers when they are
        created."""
        try:
            if self._attachments.is_there(item.pod):
                log.info("the pod started while nobody listened", extra={"pod": str(item.pod)})
                start = Start.of(item.pod, item.annotations, item.asker, self._prefix, self._spans)
                self._start(start, time.monotonic() + _MISSED_S)
        except NriRdmaError as error:
            log.warning("the pod gets nothing", extra={"pod": str(item.pod), "error": str(error)})
        finally:
            self._known.step(item.pod.sandbox_id, LifeEvent.DECIDED)
