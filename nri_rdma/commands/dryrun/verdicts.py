"""The decisions that the daemon would make for each pod and container that the runtime reports.

The Engine makes the decisions. This module asks it about every pod, reports the results, and gives the runtime empty
answers, so that no pod is refused and no container changed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.attachments import Attachments
from nri_rdma.attach.record import SandboxRecord
from nri_rdma.decide.inject import NOTHING
from nri_rdma.engine.container import Container, FindImage, Listed, ShowGpus, Start
from nri_rdma.engine.engine import Engine
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

LISTED_S = 5.0
"""The time limit in seconds for the decision about a pod that ran before the dry run began. The runtime does not wait
for such a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodVerdict:
    """The decision for a pod: a refusal, the record of what would be attached, or neither if the pod asks for nothing.
    A pod whose devices a daemon has attached is not decided again; `has` names its devices."""

    pod: Pod
    record: SandboxRecord | None = None
    refusal: NriRdmaError | None = None
    was_there: bool = False
    """Whether the pod was running before the dry run began."""
    has: tuple[str, ...] = ()
    """The devices that a running daemon has attached to the pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerVerdict:
    """The decision for a container. With a `refusal` it would not be created. `served`: a running daemon handles its
    pod, so nothing is decided here."""

    sandbox_id: str
    pod_name: str
    container: str
    edits: ContainerEdits = NOTHING
    refusal: NriRdmaError | None = None
    served: bool = False


Attached: TypeAlias = Mapping[str, tuple[str, ...]]
"""The names of the devices that a daemon has attached, by the id of the pod sandbox."""


class Report(Protocol):
    """The receiver of the decisions. It is called by one thread at a time."""

    def pod(self, verdict: PodVerdict) -> None: ...

    def container(self, verdict: ContainerVerdict) -> None: ...

    def ended(self, pod: Pod) -> None:
        """Receive the end of a sandbox. The devices that it would have held are free again."""


@dataclass(slots=True)
class _Seen:
    """A pod whose decision has been reported or will be soon."""

    pod: Pod
    decided: threading.Event = field(default_factory=threading.Event)
    refusal: NriRdmaError | None = None
    has: tuple[str, ...] = ()


class Verdicts:
    """Takes the engine's place behind the runtime's plugin, and reports decisions instead of applying them. `engine`
    must have the tasks of nri_rdma.commands.dryrun.finding_out, which change nothing."""

    def __init__(
        self,
        engine: Engine,
        attachments: Attachments,
        workers: Workers,
        report: Report,
        attached: Callable[[], Attached],
    ) -> None:
        """`attached` returns the devices that a daemon on this node has attached, by sandbox id."""
        self.engine = engine
        self._attachments = attachments
        self._workers = workers
        self._report = report
        self._attached = attached
        self._telling = threading.RLock()
        self._seen: dict[str, _Seen] = {}

    def may_ask(self, annotations: Mapping[str, str], pod_uid: str) -> bool:
        """Return True: every pod is reported."""
        return True

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the engine would attach devices to the sandbox."""
        return self.engine.knows(sandbox_id)

    def remembers(self, sandbox_id: str) -> bool:
        """Return whether the decision for the pod has been reported or will be soon."""
        return sandbox_id in self._seen

    def concerns(self, container: Container) -> bool:
        """Return True: every container is reported."""
        return True

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox that was stopped."""
        self.engine.forget(sandbox_id)

    def start_of(self, pod: Pod, annotations: Mapping[str, str], asker: Asker) -> Start:
        """Return the pod's request as a Start, the argument of `run_pod`."""
        return self.engine.start_of(pod, annotations, asker)

    def run_pod(self, start: Start, deadline: float) -> None:
        """Report what the pod would get. An invalid or refused request is reported, not raised."""
        if start.pod.sandbox_id in self._seen:
            return  # the runtime reports a pod twice: in Synchronize, and as an event
        seen = self._seen[start.pod.sandbox_id] = _Seen(start.pod)
        self._decide(seen, start, deadline, was_there=False)

    def create_container(self, container: Container, deadline: float) -> ContainerEdits:
        """Report what the container would get, and return no edits. A refusal is reported, not raised."""
        seen = self._seen.get(container.sandbox_id)
        if seen is not None:
            seen.decided.wait(min(self.engine.barrier.waits.barrier_s, deadline - time.monotonic()))
        refusal = seen.refusal if seen is not None else None
        served = seen is not None and bool(seen.has)
        edits = NOTHING
        if refusal is None and not served:
            try:
                edits = self.engine.create_container(container, deadline)
            except NriRdmaError as error:
                refusal = error
        with self._telling:
            self._report.container(
                ContainerVerdict(
                    sandbox_id=container.sandbox_id,
                    pod_name=container.pod_name,
                    container=container.name,
                    edits=edits,
                    refusal=refusal,
                    served=served,
                )
            )
        return NOTHING

    def container_created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """Do nothing: the dry run has given the container nothing."""

    def leaves_limits(self, cgroups_path: str, container_id: str, sandbox_id: str) -> bool:
        """Return True, which means that the daemon has no rdma cgroup limits to write: the dry run gives containers
        none."""
        return True

    def start_container(
        self,
        sandbox_id: str,
        container: str,
        cgroups_path: str,
        gpus: ShowGpus | None = None,
        container_id: str = "",
        image: FindImage | None = None,
    ) -> None:
        """Do nothing: no cgroup is written and no image is read."""

    def stop_pod(self, sandbox_id: str, deadline: float) -> None:
        """Free the devices that the pod would have held, and report its end."""
        seen = self._seen.pop(sandbox_id, None)  # first: a thread that decides checks it after its decision
        self.engine.stop_pod(sandbox_id, deadline)
        if seen is not None:
            with self._telling:
                self._report.ended(seen.pod)

    def synchronize(self, pods: Collection[Listed]) -> Future[None]:
        """Report the decisions for all running pods, in a worker thread. A pod that was reported earlier and is not
        listed any more is reported as ended."""
        listed = {item.pod.sandbox_id for item in pods}
        gone = tuple(known for known in self._seen if known not in listed)
        new = tuple((item, _Seen(item.pod)) for item in pods if item.pod.sandbox_id not in self._seen)
        for item, seen in new:  # in this thread, so that the end of a pod finds it here before the worker runs
            self._seen[item.pod.sandbox_id] = seen
        return self._workers.submit("reconcile", lambda: self._list(gone, new))

    def _list(self, gone: Collection[str], new: Collection[tuple[Listed, _Seen]]) -> None:
        for sandbox_id in gone:
            self.stop_pod(sandbox_id, time.monotonic())
        attached = self._attached()
        self.engine.specs.await_ready(None, time.monotonic() + LISTED_S)
        for item, seen in new:
            if self._has_ended(seen):
                continue
            until = time.monotonic() + LISTED_S
            seen.has = attached.get(item.pod.sandbox_id, ())
            self._decide(seen, self.start_of(item.pod, item.annotations, item.asker), until, was_there=True)
            if self._has_ended(seen):  # while it was decided
                self.engine.stop_pod(item.pod.sandbox_id, until)
                continue
            for it in item.containers:
                self.create_container(item.container(it), until)

    def _has_ended(self, seen: _Seen) -> bool:
        return self._seen.get(seen.pod.sandbox_id) is not seen

    def _decide(self, seen: _Seen, start: Start, deadline: float, *, was_there: bool) -> None:
        try:
            if not seen.has:
                self.engine.run_pod(start, deadline)
        except NriRdmaError as refusal:
            self._tell(seen, None, refusal, was_there)
            return
        sandbox = self._attachments.get(seen.pod.sandbox_id)
        if sandbox is None:
            self._tell(seen, None, None, was_there)
        else:  # called at once if the plan is done already
            sandbox.attach_done.add_done_callback(lambda done: self._planned(seen, sandbox, done, was_there))

    def _planned(self, seen: _Seen, sandbox: Attachment, done: Future[None], was_there: bool) -> None:
        if done.cancelled():
            return  # the dry run is ending
        error = done.exception()
        if error is None or isinstance(error, NriRdmaError):
            self._tell(seen, sandbox.now.record, error, was_there)
        else:
            log.error("bug in a plan", exc_info=error, extra={"pod": str(seen.pod)})

    def _tell(self, seen: _Seen, record: SandboxRecord | None, refusal: NriRdmaError | None, was_there: bool) -> None:
        seen.refusal = refusal
        seen.decided.set()
        with self._telling:
            if not self._has_ended(seen):
                self._report.pod(
                    PodVerdict(pod=seen.pod, record=record, refusal=refusal, was_there=was_there, has=seen.has)
                )
