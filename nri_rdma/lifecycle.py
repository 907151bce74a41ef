"""The life of a sandbox, whichever door it comes through: admit, place, attach, inject, return.

Fail closed: whatever cannot be given is refused with an error, and a container whose pod asked for devices gets none
of its answers before they are attached. Calls have a deadline in seconds of `time.monotonic` and answer before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass

from nri_rdma.allocations import Allocations
from nri_rdma.annotations import asks, parse_pod_request
from nri_rdma.attach.port import KernelError
from nri_rdma.attach.record import State
from nri_rdma.attach.sandboxes import Sandbox, Sandboxes
from nri_rdma.attach.workers import Workers
from nri_rdma.errors import ErrorCode, InventoryError, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.inject import inject
from nri_rdma.model.device import Node
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.request import UNLIMITED, PodRequest
from nri_rdma.observe.spans import Recorder
from nri_rdma.placement import Placed, place
from nri_rdma.policy import Policy, admit, refuse_memlock

log = logging.getLogger(__name__)

BARRIER_WAIT_S = 0.2
"""How long a CreateContainer waits for an attach that still runs; NRI serialises all events of the node meanwhile."""


class NodeSource:
    """The node as last read. `refresh` reads it anew and blocks; `current` never does."""

    def __init__(self, read: Callable[[], Node]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self.current = read()

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
class Listed:
    """A pod that the runtime says there is, and whether a container of it is created or running."""

    pod: Pod
    annotations: Mapping[str, str]
    has_containers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unserved:
    """A pod that asks for devices and whose containers run without: they were made while this daemon was away."""

    pod: Pod
    why: str


class Lifecycle:
    """What doors call. Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: NodeSource,
        policy: Policy,
        allocations: Allocations,
        sandboxes: Sandboxes,
        workers: Workers,
        spans: Recorder,
        annotation_prefix: str,
        default_memlock: int | None,
    ) -> None:
        self._node = node
        self._policy = policy
        self._allocations = allocations
        self._sandboxes = sandboxes
        self._workers = workers
        self._spans = spans
        self._prefix = annotation_prefix
        self.default_memlock = default_memlock
        self.memlock_ceiling = UNLIMITED
        self.unserved: tuple[Unserved, ...] = ()

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Whether a pod with these annotations asks us for anything."""
        return asks(annotations, self._prefix)

    def start(self, pod: Pod, annotations: Mapping[str, str], deadline: float) -> None:
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
            placed = self._place(pod, request, deadline)
            span.attributes["rdma.devices"] = ",".join(device.name for item in placed for device in item.devices)
            span.attributes["reason"] = "; ".join(reason for item in placed for reason in item.reasons)
        sandbox = self._sandboxes.begin(pod, placed, self._node.current.rdma_cm)
        _wait(sandbox.attach_done, deadline - time.monotonic())

    def knows(self, sandbox_id: str) -> bool:
        """Whether the sandbox holds anything of ours."""
        return self._sandboxes.get(sandbox_id) is not None

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
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox is None:
            if self._asks_for_devices(annotations):
                raise _not_attached(pod_name)
            return ContainerEdits()
        if sandbox.state is not State.ATTACHED:
            with self._spans.span("barrier"):
                self._pass_barrier(sandbox, deadline)
        record = sandbox.record
        assert record is not None  # an attached sandbox has one
        with self._spans.span("inject"):
            return inject(
                record.attached, record.rdma_cm, container, present_env, present_devices, self.default_memlock
            )

    def stop(self, sandbox_id: str, deadline: float) -> None:
        """Give everything back, as far as the deadline allows; the rest goes on. Never raises."""
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
        self.unserved = tuple(
            Unserved(pod=item.pod, why="its containers were made while nri-rdma was away")
            for item in pods
            if item.has_containers and not self.knows(item.pod.sandbox_id) and self._asks_for_devices(item.annotations)
        )
        for item in self.unserved:
            log.warning("pod runs without the devices it asks for", extra={"pod": str(item.pod), "why": item.why})

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """`reconcile` in a worker. To be called before the runtime goes on to the next event."""
        known = self._sandboxes.all()
        return self._workers.submit("reconcile", lambda: self.reconcile(pods, known))

    def _place(self, pod: Pod, request: PodRequest, deadline: float) -> tuple[Placed, ...]:
        """Place; a refusal is only given on fresh facts, so that it ends as soon as its cause does."""
        try:
            return self._place_on(self._node.current, pod, request)
        except PlacementError:
            refreshed = self._workers.submit("refresh", lambda: _drop(self._node.refresh()))
            _wait(refreshed, deadline - time.monotonic())
        if not refreshed.done():
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "what was free is taken, and reading the node anew takes longer than the runtime waits",
                where=str(pod),
                hint="nothing to do: the kubelet tries again",
            )
        return self._place_on(self._node.current, pod, request)

    def _place_on(self, node: Node, pod: Pod, request: PodRequest) -> tuple[Placed, ...]:
        refuse_memlock(request, self.memlock_ceiling)
        admitted = admit(self._policy, node, request, host_network=not pod.netns_path)
        return self._allocations.allocate(pod.sandbox_id, str(pod), lambda taken: place(node, taken, admitted))

    def _return_older(self, pod: Pod, deadline: float) -> None:
        """A pod has one sandbox at a time: what an older one of the same UID still holds is returned first."""
        for sandbox in self._sandboxes.all():
            if sandbox.pod.uid == pod.uid and sandbox.pod.sandbox_id != pod.sandbox_id:
                undo = self._sandboxes.end(sandbox.pod.sandbox_id)
                if undo is not None:
                    _wait(undo, deadline - time.monotonic())

    def _pass_barrier(self, sandbox: Sandbox, deadline: float) -> None:
        if sandbox.state in {State.PLANNED, State.ATTACHING}:
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

    def _asks_for_devices(self, annotations: Mapping[str, str]) -> bool:
        try:
            request = parse_pod_request(annotations, self._prefix)
        except NriRdmaError:
            return True  # what cannot be read may well ask: fail closed
        return request is not None and bool(request.requests)


def _wait(future: Future[None], timeout_s: float) -> None:
    """Wait for the end of a worker's task and raise what it raised; on time-out just go on, the barrier holds."""
    try:
        future.result(max(0.0, timeout_s))
    except FutureTimeoutError:
        return


def _drop(_value: object) -> None:
    """For tasks whose value nobody needs."""


def _returning(pod: Pod) -> NotReadyError:
    return NotReadyError(
        ErrorCode.RETURNING,
        "the devices of this sandbox go back to the host",
        where=str(pod),
        hint="nothing to do: the kubelet makes a new sandbox",
    )


def _not_attached(pod_name: str) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        "this pod asks for RDMA devices and none are attached to its sandbox",
        where=pod_name,
        hint="delete the pod so that it gets a new sandbox",
    )
