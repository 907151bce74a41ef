"""The life of a sandbox, whichever door it comes through: admit, place, attach, inject, return.

Fail closed: whatever cannot be given is refused with an error, and a container whose pod asked for devices gets none
of its answers before they are attached. Calls have a deadline in seconds of `time.monotonic` and answer before it.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from typing import Protocol

from nri_rdma.allocations import Allocations
from nri_rdma.annotations import asks, parse_pod_request
from nri_rdma.attach.port import KernelError
from nri_rdma.attach.record import State
from nri_rdma.attach.sandboxes import Sandbox
from nri_rdma.attach.workers import Workers
from nri_rdma.errors import ErrorCode, InventoryError, LimitsError, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.inject import inject, rdma_max, shown_as
from nri_rdma.model.device import CharDevice, Node, RdmaDevice
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import UNLIMITED, PodRequest
from nri_rdma.observe.spans import Recorder
from nri_rdma.placement import Placed, place
from nri_rdma.policy import Asker, Offer, Policy, admit, offer, refuse_memlock

log = logging.getLogger(__name__)

BARRIER_PAUSE_S = 0.8
"""The kubelet's attempts are at least a second apart: within this time the next containers belong to the same one."""
_KEPT_FAILURES = 256
_TOLD_ANSWERS = 2
"""The kubelet asks for a container again when the last one did not start: the log says so once."""
BARRIER_WAIT_S = 0.2
"""How long a CreateContainer waits for an attach that still runs; NRI serialises all events of the node meanwhile."""


class Limits(Protocol):
    """What limits the containers; `where` is what errors and log lines call one."""

    def write(self, cgroups_path: str, lines: Sequence[str], where: str) -> None:
        """Write lines of rdma.max to the container's cgroup. Raises LimitsError."""

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """See to it that the container's limits end with it. Never raises."""


class Attaching(Protocol):
    """Who attaches: nri_rdma.attach.sandboxes, or a dry run, which only plans."""

    def get(self, sandbox_id: str) -> Sandbox | None: ...

    def all(self) -> tuple[Sandbox, ...]: ...

    def begin(self, pod: Pod, placed: tuple[Placed, ...], rdma_cm: CharDevice | None) -> Sandbox: ...

    def end(self, sandbox_id: str) -> Future[None] | None: ...

    def look_again(self, sandbox: Sandbox) -> Future[None]: ...


class NodeSource:
    """The node as last read. `refresh` reads it anew and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._queued: Future[None] | None = None
        self._queue_lock = threading.Lock()
        self.current = read()

    def refresh_in(self, workers: Workers) -> Future[None]:
        """Have a worker read it anew. Who asks while a reading is queued gets that one: it has not begun yet."""
        with self._queue_lock:
            if self._queued is None:
                self._queued = workers.submit("refresh", self._begin)
            return self._queued

    def _begin(self) -> None:
        with self._queue_lock:
            self._queued = None
        self.refresh()

    def refresh(self) -> Node:
        """Read the node anew. Raises InventoryError, and keeps what was known, when it cannot be read."""
        with self._lock:
            try:
                self.current = self._read()
            except (KernelError, OSError) as error:
                raise InventoryError(
                    ErrorCode.INVENTORY, f"the node cannot be read: {error}", hint="try again; see `nri-rdma inventory`"
                ) from error
            return self.current


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedContainer:
    """A created or running container of a pod, with the device nodes it has: path to major and minor, and the names
    of its variables."""

    name: str
    devices: Mapping[str, tuple[int, int]]
    cgroups_path: str = ""
    env: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A pod that the runtime says there is."""

    pod: Pod
    annotations: Mapping[str, str]
    containers: tuple[ListedContainer, ...]
    asker: Asker = field(default_factory=Asker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A pod that asks for devices and does not have them, or has containers without."""

    pod: Pod
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offered:
    """What a policy offers on a node; made once for each of both, not for each pod."""

    policy: Policy
    node: Node
    offer: Offer

    @classmethod
    def of(cls, policy: Policy, node: Node) -> _Offered:
        return cls(policy=policy, node=node, offer=offer(policy, node))


class Lifecycle:
    """What doors call. Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: NodeSource,
        policy: Policy,
        allocations: Allocations,
        sandboxes: Attaching,
        workers: Workers,
        spans: Recorder,
        limits: Limits,
        annotation_prefix: str,
        default_memlock: int | None,
    ) -> None:
        self._node = node
        self.policy = policy
        """What this node offers to whom. Another one is for pods that come; what pods have stays theirs."""
        self._offered = _Offered.of(policy, node.current)
        self._allocations = allocations
        self._sandboxes = sandboxes
        self._workers = workers
        self._spans = spans
        self._limits = limits
        self._prefix = annotation_prefix
        self.default_memlock = default_memlock
        self.memlock_ceiling = UNLIMITED
        self.memlock_dropped_by = ""
        """Which runtime does not set RLIMIT_MEMLOCK at all."""
        self._unserved: dict[str, Unserved] = {}
        self._failed: OrderedDict[str, Unserved] = OrderedDict()
        self._barrier_waits: dict[str, float] = {}

    @property
    def unserved(self) -> tuple[Unserved, ...]:
        """The pods that ask for devices and run, or wait, without."""
        return (*self._unserved.copy().values(), *self._failed.copy().values())

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Whether a pod with these annotations asks us for anything."""
        return asks(annotations, self._prefix)

    def start(self, pod: Pod, annotations: Mapping[str, str], deadline: float, asker: Asker) -> None:
        """Give the pod what it asks for, or raise. An attach that outlives the deadline goes on: containers wait."""
        with self._spans.span("parse"):
            request = parse_pod_request(annotations, self._prefix)
        if request is None or not request.requests:
            return
        known = self._sandboxes.get(pod.sandbox_id)
        if known is not None and known.undo_done is not None:
            raise _returning(pod)
        if known is not None:
            return  # seen already, in Synchronize: events of one sandbox may be told twice
        self._return_older(pod, deadline)
        with self._spans.span("place") as span:
            placed = self._place(pod, request, deadline, asker)
            span.attributes["rdma.devices"] = ",".join(device.name for item in placed for device in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in placed for reason in item.reasons)
        sandbox = self._sandboxes.begin(pod, placed, self._node.current.rdma_cm)
        if not _wait(sandbox.attach_done, deadline - time.monotonic()):
            sandbox.attach_done.add_done_callback(lambda done: self._remember_failure(pod, done))

    def knows(self, sandbox_id: str) -> bool:
        """Whether the sandbox holds anything of ours."""
        return self._sandboxes.get(sandbox_id) is not None

    def remembers(self, sandbox_id: str) -> bool:
        """Whether the end of the sandbox matters to us: it holds something, or lacks what it asks for."""
        return self.knows(sandbox_id) or sandbox_id in self._unserved or sandbox_id in self._failed

    def edits(
        self,
        sandbox_id: str,
        pod_name: str,
        annotations: Mapping[str, str],
        container: str,
        present_env: Collection[str],
        present_devices: Mapping[str, tuple[int, int]],
        deadline: float,
    ) -> ContainerEdits:
        """What a container of the pod gets, from memory. Raises when its pod asked and nothing is attached."""
        failed = self._failed.get(sandbox_id)
        if failed is not None:
            raise _failed_late(failed)
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            if self._asks_for_devices(annotations):
                raise _not_attached(pod_name)
            return ContainerEdits()
        if sandbox.state is not State.ATTACHED:
            with self._spans.span("barrier"):
                self._pass_barrier(sandbox, deadline)
        self._await_present(sandbox, container, deadline)
        record = sandbox.record
        assert record is not None  # an attached sandbox has one
        with self._spans.span("inject"):
            edits = inject(
                record.attached, record.rdma_cm, container, present_env, present_devices, self.default_memlock
            )
            for node in edits.char_devices:
                if node.path in present_devices:
                    self._refuse_another(node, present_devices[node.path], f"{sandbox.pod}, container {container}")
            return edits

    def created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """CreateContainer of this container is being answered. `status` shows what it uses, as long as its cgroup is
        there, and that it did not start, until it does."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            return
        sandbox.remember_container(container, cgroups_path)
        if sandbox.answered(container) == _TOLD_ANSWERS:
            log.warning(
                "the container did not start after our last answer: somebody else refused it",
                extra={"pod": str(sandbox.pod), "container": container, "next": "see the events of the pod"},
            )

    def starting(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """The container's cgroup is there, and its process does not run yet: the last moment for limits that the
        runtime was not told. Raises LimitsError."""
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is not None:
            sandbox.unstarted.pop(container, None)
            self._limit_all(sandbox, container, cgroups_path)

    def stop(self, sandbox_id: str, deadline: float) -> None:
        """Give everything back, as far as the deadline allows; the rest goes on. Never raises."""
        for memory in (self._unserved, self._failed, self._barrier_waits):
            memory.pop(sandbox_id, None)
        undo = self._sandboxes.end(sandbox_id)
        if undo is None:
            return
        try:
            undo.result(max(0.0, deadline - time.monotonic()))
        except (FutureTimeoutError, CancelledError):
            log.warning("undo goes on after the answer", extra={"sandbox": sandbox_id})

    def reconcile(self, pods: Collection[Listed], known: Collection[Sandbox]) -> None:
        """Compare with what the runtime says there is. Blocks: for a worker, after the runtime has its answer.

        `known` are the sandboxes that existed when the list was made: one that is younger is not missing in it.
        """
        listed = {item.pod.sandbox_id for item in pods}
        for sandbox in known:
            if sandbox.pod.sandbox_id not in listed:
                log.info("sandbox is gone, returning its devices", extra={"pod": str(sandbox.pod)})
                self._sandboxes.end(sandbox.pod.sandbox_id)
        found = {
            item.pod.sandbox_id: why for item in pods if (why := self._limit_again(item) or self._why_unserved(item))
        }
        self._unserved = {
            item.pod.sandbox_id: Unserved(pod=item.pod, why=found[item.pod.sandbox_id])
            for item in pods
            if item.pod.sandbox_id in found
        }
        for unserved in self._unserved.values():
            log.warning("pod runs without what it asks for", extra={"pod": str(unserved.pod), "why": unserved.why})

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """`reconcile` in a worker. To be called before the runtime goes on to the next event."""
        known = self._sandboxes.all()
        for item in pods:  # here, in the order of events: a container that is made next has a newer path
            sandbox = self._sandboxes.get(item.pod.sandbox_id)
            if sandbox is not None:
                for container in item.containers:
                    sandbox.remember_container(container.name, container.cgroups_path)
        return self._workers.submit("reconcile", lambda: self.reconcile(pods, known))

    def _why_unserved(self, item: Listed) -> str:
        """Why the containers of a pod lack what it asks for; "" when they do not."""
        sandbox = self._sandboxes.get(item.pod.sandbox_id)
        if sandbox is None:
            if item.containers and self._asks_for_devices(item.annotations):
                return "its containers were made while nri-rdma was away"
            return ""
        record = sandbox.record
        if record is None or sandbox.state is not State.ATTACHED:
            return ""
        bare = [
            container.name
            for container in item.containers
            if inject(record.attached, record.rdma_cm, container.name, (), container.devices, None).char_devices
        ]
        return f"container {', '.join(bare)} was made while nri-rdma was away" if bare else ""

    def _limit_again(self, item: Listed) -> str:
        """Limit the containers of an attached sandbox; why that fails, "" when it does not.

        One that started while we were away, or between our last answer and our end, had nobody to limit it.
        """
        sandbox = self._sandboxes.get(item.pod.sandbox_id)
        if sandbox is None or sandbox.state is not State.ATTACHED:
            return ""
        lacking = []
        for container in item.containers:
            try:
                self._limit_all(sandbox, container.name, container.cgroups_path)
            except LimitsError as error:
                if error.errno != errno.ENOENT:  # it has not started yet, or has ended
                    lacking.append(str(error))
        return " ".join(lacking)

    def _limit_all(self, sandbox: Sandbox, container: str, cgroups_path: str) -> None:
        """Every line, the first too: a runtime that was given several may have mixed them up (docs/adr/0009)."""
        lines = rdma_max(sandbox.record.attached, container) if sandbox.record is not None else ()
        if not lines:
            return
        where = f"{sandbox.pod}, container {container}"
        try:
            if len(lines) > 1:
                with self._spans.span("limit"):
                    self._limits.write(cgroups_path, lines, where)
        finally:
            self._limits.lift_at_end(cgroups_path, where)  # what the runtime wrote too, also when it is not to start

    def _remember_failure(self, pod: Pod, done: Future[None]) -> None:
        """The attach went on after RunPodSandbox was answered: what became of it is told to its containers."""
        error = None if done.cancelled() else done.exception()
        sandbox = self._sandboxes.get(pod.sandbox_id)
        if error is None or (sandbox is not None and sandbox.undo_done is not None):
            return  # it went well, or the sandbox is being taken down anyway
        self._failed[pod.sandbox_id] = Unserved(pod=pod, why=str(error))
        while len(self._failed) > _KEPT_FAILURES:
            self._failed.popitem(last=False)

    def _place(self, pod: Pod, request: PodRequest, deadline: float, asker: Asker) -> tuple[Placed, ...]:
        """Place; a refusal is only given on fresh facts, so that it ends as soon as its cause does."""
        try:
            return self._place_on(self._node.current, pod, request, asker)
        except PlacementError:
            refreshed = self._node.refresh_in(self._workers)
            _wait(refreshed, deadline - time.monotonic())
        if not refreshed.done():
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "what was free is taken, and reading the node anew takes longer than the runtime waits",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )
        return self._place_on(self._node.current, pod, request, asker)

    def _place_on(self, node: Node, pod: Pod, request: PodRequest, asker: Asker) -> tuple[Placed, ...]:
        refuse_memlock(request, self.memlock_ceiling, self.memlock_dropped_by)
        offered = self._offered_on(node)
        admitted = admit(offered.policy, node, request, asker)
        return self._allocations.allocate(
            pod.sandbox_id, str(pod), lambda taken: place(node, offered.offer, taken, admitted)
        )

    def _offered_on(self, node: Node) -> _Offered:
        policy, offered = self.policy, self._offered
        if offered.policy is not policy or offered.node is not node:
            self._offered = offered = _Offered.of(policy, node)
        return offered

    def _return_older(self, pod: Pod, deadline: float) -> None:
        """A pod has one sandbox at a time: what an older one of the same UID still holds is returned first."""
        for sandbox in self._sandboxes.all():
            if sandbox.pod.is_same_pod(pod) and sandbox.pod.sandbox_id != pod.sandbox_id:
                undo = self._sandboxes.end(sandbox.pod.sandbox_id)
                if undo is not None:
                    _wait(undo, deadline - time.monotonic())

    def _refuse_another(self, ours: CharDevice, theirs: tuple[int, int], where: str) -> None:
        """Our node takes the place of one at its path, and hides it. Where that is another device of this node, two
        parties want the container to have different devices of one name: neither may win in silence. Numbers that are
        nobody's are old ones (of a CDI file, say), and are put right."""
        found = shown_as(ours.path, theirs, self._node.current.devices)
        if found is not None:
            raise _another_at(ours, theirs, found, where)
        log.warning(
            "a device node of the container is replaced by ours",
            extra={
                "container": where,
                "path": ours.path,
                "theirs": f"{theirs[0]}:{theirs[1]}",
                "ours": f"{ours.major}:{ours.minor}",
            },
        )

    def _pass_barrier(self, sandbox: Sandbox, deadline: float) -> None:
        if sandbox.state in {State.PLANNED, State.ATTACHING} and self._may_wait(sandbox.pod.sandbox_id):
            _wait(sandbox.attach_done, min(BARRIER_WAIT_S, deadline - time.monotonic()))
        if sandbox.state is State.ATTACHED:
            return
        if sandbox.state in {State.RETURNING, State.GONE}:
            raise _returning(sandbox.pod)
        raise NotReadyError(
            ErrorCode.NOT_READY,
            f"network is not ready: {sandbox.steps_done} of {sandbox.steps_total} steps of the attach done",
            where=str(sandbox.pod),
            hint="nothing to do: the kubelet asks again",
        )

    def _await_present(self, sandbox: Sandbox, container: str, deadline: float) -> None:
        """No container gets what may be another's by now: a number that the kernel took away, or, for its limits, the
        name of a device that the pod itself can change unseen."""
        looked = sandbox.looked_again
        if _has_limits(sandbox, container) or (looked is not None and looked.done() and looked.exception() is not None):
            looked = self._sandboxes.look_again(sandbox)  # what was missing may be back
        if looked is None or (looked.done() and looked.exception() is None):
            return
        with self._spans.span("barrier"):
            if not _wait(looked, min(BARRIER_WAIT_S, deadline - time.monotonic())):
                raise NotReadyError(
                    ErrorCode.NOT_READY,
                    "network is not ready: the devices of this pod are looked at again",
                    where=str(sandbox.pod),
                    hint="nothing to do: the kubelet asks again",
                )

    def _may_wait(self, sandbox_id: str) -> bool:
        """One container of a sandbox waits in each of the kubelet's attempts; the others are answered at once."""
        now = time.monotonic()
        may = now - self._barrier_waits.get(sandbox_id, -BARRIER_PAUSE_S) >= BARRIER_PAUSE_S
        if may:
            self._barrier_waits[sandbox_id] = now
        return may

    def _asks_for_devices(self, annotations: Mapping[str, str]) -> bool:
        try:
            request = parse_pod_request(annotations, self._prefix)
        except NriRdmaError:
            return True  # what cannot be read may well ask: fail closed
        return request is not None and bool(request.requests)


def _wait(future: Future[None], timeout_s: float) -> bool:
    """Wait for the end of a worker's task and raise what it raised; False on time-out: go on, the barrier holds."""
    try:
        future.result(max(0.0, timeout_s))
    except FutureTimeoutError:
        return False
    return True


def _has_limits(sandbox: Sandbox, container: str) -> bool:
    """Whether an attached sandbox's container gets limits, which know devices by name."""
    requests = [item.admitted.request for item in sandbox.record.attached] if sandbox.record is not None else []
    return any(request.limits is not None and request.scope.covers(container) for request in requests)


def _another_at(
    ours: CharDevice, theirs: tuple[int, int], found: tuple[RdmaDevice, CharDevice], where: str
) -> PlacementError:
    device, char = found
    return PlacementError(
        ErrorCode.PATH_CONFLICT,
        f"{ours.path} of the container is {theirs[0]}:{theirs[1]} already, {char.path} of {device.name};"
        f" this pod's is {ours.major}:{ours.minor}",
        where=where,
        hint="let only one give it devices; the other is a device plugin, CDI or an NRI plugin before this one",
    )


def _returning(pod: Pod) -> NotReadyError:
    return NotReadyError(
        ErrorCode.RETURNING,
        "the devices of this sandbox go back to the host",
        where=str(pod),
        hint="the pod needs a new sandbox; delete the pod if the kubelet does not make one",
    )


def _failed_late(failed: Unserved) -> NotReadyError:
    return NotReadyError(
        ErrorCode.ATTACH_FAILED,
        "the attach failed after the sandbox had started, and was undone",
        where=str(failed.pod),
        hint="delete the pod so that it gets a new sandbox",
        detail=failed.why,
    )


def _not_attached(pod_name: str) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        "this pod asks for RDMA devices and none are attached to its sandbox",
        where=pod_name,
        hint="delete the pod so that it gets a new sandbox",
    )
