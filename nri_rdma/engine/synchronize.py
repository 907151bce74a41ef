"""Compares with the runtime's list of pods: which ended unnoticed, which were missed, which run without their devices.

The list comes with Synchronize, which is answered at once; a worker compares.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from nri_rdma.attach.attachment import Attachment, attached_of
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.record import Phase
from nri_rdma.decide.inject import AttachedRequest, inject
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.evidence import Adopter, Brought
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.limiter import Limiter
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.sandbox import LifeEvent, Unserved
from nri_rdma.errors import LimitsError, NotReadyError, NriRdmaError
from nri_rdma.model.device import CharDevice
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import env_name
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

_SPECS_S = 60.0
"""How long a worker waits until the CDI specs are read; then it goes on without them."""
_MISSED_S = 10.0
"""Deadline for deciding about a pod that started while nobody listened; an attach that outlives it goes on."""
_TAKEN_UP_S = 60.0
"""How long a worker waits until an earlier daemon's attachments are adopted or undone; then it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A created or running container of a pod, with its device nodes (path to major and minor) and the names of its
    variables."""

    name: str
    devices: Mapping[str, tuple[int, int]]
    cgroups_path: str = ""
    cdi_devices: tuple[str, ...] = ()
    is_privileged: bool = False
    env: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A pod in the runtime's list."""

    pod: Pod
    annotations: Mapping[str, str]
    containers: tuple[ListedContainer, ...]
    asker: Asker = field(default_factory=Asker)


StartPod = Callable[[Pod, Mapping[str, str], float, Asker], None]
"""Starts a pod: pod, annotations, deadline in seconds of `time.monotonic`, asker. Raises NriRdmaError."""


class Synchronizer:
    """Compares the pods. `reconcile_later` is called by the runtime's reader; the rest runs in a worker."""

    def __init__(
        self,
        attachments: Attachments,
        workers: Workers,
        spans: Recorder,
        placer: Placer,
        late: LateAttach,
        limiter: Limiter,
        start: StartPod,
    ) -> None:
        self._attachments = attachments
        self._workers = workers
        self._spans = spans
        self._placer = placer
        self._adopter = placer.adopter
        self._late = late
        self._limiter = limiter
        self._start = start
        self._known = placer.adopter.sandboxes
        self.count = 0
        """How many pods were found, since this daemon started, that had started without what they ask for."""

    def _decide_no_more(self) -> None:
        """Give up deciding about missed sandboxes that are still undecided."""
        for known in self._known.all():
            self._known.step(known.sandbox_id, LifeEvent.DECIDED)

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """Run `reconcile` in a worker. To be called before the runtime goes on to the next event."""
        known = self._attachments.all()
        self._known.keep({item.pod.sandbox_id for item in pods})
        for item in pods:  # here, in the order of events: a container that is made next has a newer path
            sandbox = next(iter(self._attachments.of(item.pod.sandbox_id)), None)
            if sandbox is not None:
                for container in item.containers:
                    sandbox.remember_container(container.name, container.cgroups_path)
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
            if sandbox.pod.sandbox_id not in listed:
                log.info("sandbox is gone, returning its devices", extra={"pod": str(sandbox.pod)})
                self._attachments.end(sandbox.pod.sandbox_id)
        for sandbox in known:
            if sandbox.taken_up is not None:
                settled(sandbox.taken_up, _TAKEN_UP_S)
        self._await_specs()
        for item in pods:
            if self._known.is_missed(item.pod.sandbox_id):
                self._start_missed(item)
        self._report(
            {
                item.pod.sandbox_id: Unserved(pod=item.pod, why=why)
                for item in pods
                if (why := self._limit_again(item) or self._why_unserved(item))
            }
        )

    def _report(self, unserved: dict[str, Unserved]) -> None:
        """Report the pods that run without their devices, by sandbox; one that was reported before is not reported
        again."""
        for known in self._known.all():
            if known.unserved is not None and known.sandbox_id not in unserved:
                known.unserved = None
        for sandbox_id, item in unserved.items():
            known = self._known.take(sandbox_id)
            before, known.unserved = known.unserved, item
            if before != item:
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
            self._adopter.await_ready(None, time.monotonic() + _SPECS_S)
        except NotReadyError as error:
            log.warning("pods are looked at without CDI specs", extra={"error": str(error)})

    def _was_missed(self, item: Listed) -> bool:
        """Return whether a pod asks, has nothing, and has no container yet that lacks it: it started while nobody
        listened."""
        return (
            not item.containers
            and bool(item.pod.netns_path)  # of one that has stopped, and of one on the host's network, nothing is told
            and self._placer.asks(item.annotations)
            and not self._attachments.knows(item.pod.sandbox_id)
        )

    def _start_missed(self, item: Listed) -> None:
        """Give a pod what it would have got at its start. A refusal is reported to its containers when they are
        created."""
        try:
            if self._attachments.is_there(item.pod):
                log.info("the pod started while nobody listened", extra={"pod": str(item.pod)})
                self._start(item.pod, item.annotations, time.monotonic() + _MISSED_S, item.asker)
        except NriRdmaError as error:
            log.warning("the pod gets nothing", extra={"pod": str(item.pod), "error": str(error)})
        finally:
            self._known.step(item.pod.sandbox_id, LifeEvent.DECIDED)

    def _why_unserved(self, item: Listed) -> str:
        """Return why the containers of a pod lack what it asks for; "" when they do not."""
        parts = self._attachments.of(item.pod.sandbox_id)
        if (not parts or parts[0].part) and item.containers and self._placer.asks_for_devices(item.annotations):
            return "its containers were made while nri-rdma was away"
        early = [it.name for it in item.containers if any(_was_made_before(it.name, sandbox) for sandbox in parts)]
        if early:
            return f"container {', '.join(early)} was made while nri-rdma was away"
        if any(sandbox.record is None or sandbox.state is not Phase.ATTACHED for sandbox in parts):
            return ""
        attached, rdma_cm = attached_of(parts)
        bare = [
            container.name for container in item.containers if self._is_bare(item.pod, container, attached, rdma_cm)
        ]
        return f"container {', '.join(bare)} was made while nri-rdma was away" if bare else ""

    def _is_bare(
        self,
        pod: Pod,
        container: ListedContainer,
        attached: tuple[AttachedRequest, ...],
        rdma_cm: CharDevice | None,
    ) -> bool:
        """Return whether a running container lacks what we would have given it."""
        if inject(attached, rdma_cm, container.name, (), container.devices, None).char_devices:
            return True
        own = (item.admitted.request for item in attached if item.admitted.request.scope.covers(container.name))
        # Nodes come with a CDI device itself: that we were asked is told by our variables.
        if any(it.cdi_device and f"RDMA_DEVICES_{env_name(it.name)}" not in container.env for it in own):
            return True
        brought = brought_by(
            self._adopter, pod, Asker(namespace=pod.namespace, host_network=not pod.netns_path), container
        )
        return brought is not None and self._late.lacks(self._adopter.grants(brought), attached)

    def _limit_again(self, item: Listed) -> str:
        """Write the limits of an attached sandbox's containers; return why that fails, "" when it does not.

        A container that started while the daemon was down, or between its last answer and its end, has no limits yet.
        """
        parts = tuple(it for it in self._attachments.of(item.pod.sandbox_id) if it.state is Phase.ATTACHED)
        lacking = []
        for container in item.containers:
            try:
                self._limiter.limit_all(parts, container.name, container.cgroups_path, also_one=True)
            except LimitsError as error:
                if error.errno != errno.ENOENT:  # it has not started yet, or has ended
                    lacking.append(str(error))
        return " ".join(lacking)


def brought_by(adopter: Adopter, pod: Pod, asker: Asker, container: ListedContainer) -> Brought | None:
    """Return what an existing container has from others; None when that is nothing of ours."""
    brought = Brought(
        pod=pod,
        asker=asker,
        container=container.name,
        cdi_devices=container.cdi_devices,
        devices=container.devices,
        is_privileged=container.is_privileged,
        was_there=True,
    )
    return brought if adopter.concerns(brought) else None


def _was_made_before(container: str, sandbox: Attachment) -> bool:
    """Return whether a container exists although the attach of what it asks for is not done, or failed: no container is
    answered before that, so it was created without us."""
    done = sandbox.attach_done
    if done.done() and done.exception() is None:
        return False
    return sandbox.record is None or any(
        item.admitted.request.scope.covers(container) for item in sandbox.record.attached
    )
