"""The life of a sandbox, whichever door it comes through: admit, place, attach, inject, return.

Fail closed: whatever cannot be given is refused with an error, and a container whose pod asked for devices gets none
of its answers before they are attached. Calls have a deadline in seconds of `time.monotonic` and answer before it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

from nri_rdma.attach.attachment import Again, Attachment, Chosen, attached_of
from nri_rdma.attach.attachments import ATTEMPTS, Attachments
from nri_rdma.attach.record import Phase
from nri_rdma.decide.alignment import Alignment, alignment_of, is_strict, refuse_far
from nri_rdma.decide.gpus import Shown
from nri_rdma.decide.granted import Grant
from nri_rdma.decide.inject import AttachedRequest, inject, rdma_max, shown_as
from nri_rdma.decide.policy import Asker
from nri_rdma.engine.evidence import Brought
from nri_rdma.engine.late import Claims, returning
from nri_rdma.engine.reservations import Allocations
from nri_rdma.engine.run_pod import Asked, Chooser
from nri_rdma.engine.sandbox import Aligned, LifeEvent, Unserved
from nri_rdma.engine.synchronize import Listed, Reconciliation
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError, PlacementError
from nri_rdma.model.device import CharDevice, RdmaDevice
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import all_settled, settled, wait
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

BARRIER_PAUSE_S = 0.8
"""The kubelet's attempts are at least a second apart: within this time the next containers belong to the same one."""
_TOLD_ANSWERS = 2
"""The kubelet asks for a container again when the last one did not start: the log says so once."""
_OLDER_S = 60.0
"""For a planner: the devices of a pod's older sandbox are home, and the node is read."""

Show: TypeAlias = Callable[[], Shown]
"""Tells what a container shows of its GPUs, when it is asked."""


class Limits(Protocol):
    """What limits the containers; `where` is what errors and log lines call one."""

    def write(self, cgroups_path: str, lines: Sequence[str], where: str) -> None:
        """Write lines of rdma.max to the container's cgroup. Raises LimitsError."""

    def lift_at_end(self, cgroups_path: str, where: str) -> None:
        """See to it that the container's limits end with it. Never raises."""


class Lifecycle:
    """What doors call. Safe for use by several threads."""

    def __init__(
        self,
        *,
        chooser: Chooser,
        allocations: Allocations,
        sandboxes: Attachments,
        workers: Workers,
        spans: Recorder,
        limits: Limits,
        default_memlock: int | None,
        waits: Waits = Waits(),  # noqa: B008 - frozen
    ) -> None:
        self.chooser = chooser
        self.adopter = chooser.adopter
        self.waits = waits
        self._sandboxes = sandboxes
        self._workers = workers
        self._spans = spans
        self._limits = limits
        self.default_memlock = default_memlock
        self._claims = Claims(sandboxes, spans, chooser, self)
        self.reconciliation = Reconciliation(sandboxes, workers, spans, chooser, self)
        self._known = chooser.adopter.sandboxes
        self._known.is_attached = sandboxes.knows
        self._begin_lock = threading.Lock()

    @property
    def unserved(self) -> tuple[Unserved, ...]:
        """The pods that ask for devices and run, or wait, without."""
        found = (it for known in self._known.all() for it in (known.unserved, known.failure))
        return tuple(it for it in found if it is not None)

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Whether a pod with these annotations asks us for anything."""
        return self.chooser.asks(annotations)

    def start(self, pod: Pod, annotations: Mapping[str, str], deadline: float, asker: Asker) -> None:
        """Give the pod what it asks for, or raise. An attach that outlives the deadline goes on: containers wait."""
        asked = self.chooser.asked(pod, annotations)
        if asked is None:
            return
        with self._begin_lock:
            known = self._sandboxes.of(pod.sandbox_id)
            if any(sandbox.ends for sandbox in known):
                raise returning(pod)
            if known or not self._known.step(pod.sandbox_id, LifeEvent.RUN):
                return  # seen already, in Synchronize: events of one sandbox may be told twice
            self._known.take(pod.sandbox_id).failure = None  # of an attempt before the runtime started anew
        try:
            sandbox = self._begin(pod, asked, deadline, asker)
        finally:
            self._known.step(pod.sandbox_id, LifeEvent.RAN)
        if sandbox is not None:
            self._await_start(sandbox, deadline)

    def _begin(self, pod: Pod, asked: Asked, deadline: float, asker: Asker) -> Attachment | None:
        """Begin the attach of what is chosen; None when that is nothing: what the kubelet told of is observed."""

        def choose(by: float | None) -> Chosen:
            return self.chooser.choose(pod, asked, asker, by)

        again = Again(read=self.chooser.read_node, choose=lambda: choose(None))
        attempts = 1 if self.waits.blocking else ATTEMPTS
        older = self.end_older(pod)
        if older and not all_settled(older, min(deadline, time.monotonic() + self.waits.barrier_s)):
            return self._sandboxes.begin_after(older, pod, lambda: choose(time.monotonic() + _OLDER_S), attempts, again)
        chosen = choose(deadline)
        if not chosen.placed:
            return None
        return self._sandboxes.begin(pod, chosen.placed, chosen.rdma_cm, attempts=attempts, again=again)

    def _await_start(self, sandbox: Attachment, deadline: float) -> None:
        """Wait for the plan, which may refuse the pod, and for the attach as long as the settings say. Whatever becomes
        of it later is told to the containers."""
        now = time.monotonic()
        plan_by = now if sandbox.waits_for_older else deadline
        by = deadline if self.waits.blocking else min(deadline, now + self.waits.sandbox_s)
        if not wait(sandbox.planned, plan_by - now) or not wait(sandbox.attach_done, by - time.monotonic()):
            # Not with the sandbox: it would keep itself alive by its own future until a collection of garbage.
            sandbox.attach_done.add_done_callback(partial(self._remember_failure, sandbox.pod))

    def knows(self, sandbox_id: str) -> bool:
        """Whether the sandbox holds anything of ours."""
        return self._sandboxes.knows(sandbox_id)

    def remembers(self, sandbox_id: str) -> bool:
        """Whether the end of the sandbox matters to us: it holds something, or lacks what it asks for."""
        known = self._known.get(sandbox_id)
        lacks = known is not None and (known.unserved is not None or known.failure is not None)
        return lacks or self.knows(sandbox_id)

    def edits(
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
        """What a container of the pod gets, from memory. Raises when its pod asked and nothing is attached.

        `brought` is what it has from others; None: nothing. What that asks for is attached now if nobody told sooner.
        `shown` tells of its GPUs; None: the node has none. Only who asked to be refused waits for what follows from
        that; the others are judged when they start.
        """
        known = self._known.get(sandbox_id)
        if known is not None and known.failure is not None:
            raise _failed_late(known.failure)
        parts = self._sandboxes.of(sandbox_id)
        if (not parts or parts[0].part) and self.chooser.asks_for_devices(annotations):
            # Before anything is attached for what the container brings.
            raise _not_decided(pod_name) if self.reconciliation.is_missed(sandbox_id) else _not_attached(pod_name)
        by = min(deadline, time.monotonic() + self.waits.barrier_s)  # for all that is waited for here, together
        grants = self._claims.adopt(brought, by) if brought is not None else ()
        if grants:  # what it brings is a part of its own by now
            parts = (*(it for it in parts if not it.part), *(it for it in self._sandboxes.of(sandbox_id) if it.part))
        if len(parts) > 1 or (parts and parts[0].part):
            parts = tuple(it for it in parts if _concerns(it, container, grants))
        for sandbox in parts:
            if sandbox.state is not Phase.ATTACHED:
                with self._spans.span("barrier"):
                    self.pass_barrier(sandbox, by)
            self._await_present(sandbox, container, by)
        for sandbox in parts:
            if sandbox.ends:  # while another one was waited for
                self.pass_barrier(sandbox, by)
        attached, rdma_cm = attached_of(parts)
        if brought is not None:
            self._claims.refuse_lacking(brought.pod, grants, attached)
        if not parts:
            return ContainerEdits()
        self._refuse_far(parts[0].pod, attached, container, shown)
        with self._spans.span("inject"):
            edits = inject(attached, rdma_cm, container, present_env, present_devices, self.default_memlock)
            for node in edits.char_devices:
                if node.path in present_devices:
                    self._refuse_another(node, present_devices[node.path], f"{parts[0].pod}, container {container}")
            return replace(edits, moved_netdevs=_moved(parts, brought.net_devices)) if brought is not None else edits

    def _refuse_far(self, pod: Pod, attached: tuple[AttachedRequest, ...], container: str, shown: Show | None) -> None:
        """For who asked to be refused; the others do not wait for it."""
        if shown is not None and is_strict(attached, container):
            self._check_alignment(pod, attached, container, shown())

    def _check_alignment(self, pod: Pod, attached: tuple[AttachedRequest, ...], container: str, shown: Shown) -> None:
        """Tell whether its devices are next to the GPUs that the container has. Raises PlacementError where a strict
        request says that they have to be."""
        adopter = self.adopter
        alignment = alignment_of(attached, container, adopter.gpus_shown(shown), adopter.gpu_names)
        if alignment is None:
            return
        with self._spans.span("align", _alignment_words(alignment)):
            aligned = Aligned(pod=str(pod), container=container, alignment=alignment)
            self._note_alignment(pod.sandbox_id, aligned)
            refuse_far(alignment, f"{pod}, container {container}")

    def _note_alignment(self, sandbox_id: str, aligned: Aligned) -> None:
        """Remember what the container has now; log it once where it is bad."""
        alignments, alignment = self._known.take(sandbox_id).alignments, aligned.alignment
        is_news = alignments.get(aligned.container) != aligned
        alignments[aligned.container] = aligned
        if is_news and (alignment.is_far or alignment.contradiction):
            log.warning(
                "the container's devices are not next to its GPUs" if alignment.is_far else "the GPUs are others",
                extra={
                    "pod": aligned.pod,
                    "container": aligned.container,
                    "alignment": alignment.words,
                    "gpus_from": alignment.source,
                    "contradiction": alignment.contradiction,
                },
            )

    def created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """CreateContainer of this container is being answered. `status` shows what it uses, as long as its cgroup is
        there, and that it did not start, until it does."""
        sandbox = self._first(sandbox_id)
        if sandbox is None:
            return
        sandbox.remember_container(container, cgroups_path)
        if sandbox.answered(container) == _TOLD_ANSWERS:
            log.warning(
                "the container did not start after our last answer: somebody else refused it",
                extra={"pod": str(sandbox.pod), "container": container, "next": "see the events of the pod"},
            )

    def starting(self, sandbox_id: str, container: str, cgroups_path: str, shown: Show | None = None) -> None:
        """The container's cgroup is there, and its process does not run yet: the last moment for limits that the
        runtime was not told. `shown` tells of its GPUs, as for `edits`. Raises LimitsError, and PlacementError where a
        strict request does not fit these."""
        parts = self._sandboxes.of(sandbox_id)
        if parts:
            parts[0].started(container)
            self.limit_all(parts, container, cgroups_path)
            if shown is not None:
                self._check_alignment(parts[0].pod, attached_of(parts)[0], container, shown())

    def stop(self, sandbox_id: str, deadline: float) -> None:
        """Give everything back, as far as the deadline allows; the rest goes on. Never raises."""
        self.forget(sandbox_id)
        was_ending = all(sandbox.ends for sandbox in self._sandboxes.of(sandbox_id))
        undo = self._sandboxes.end(sandbox_id)
        if undo is None:
            return
        by = min(deadline, time.monotonic() + self.waits.barrier_s) if was_ending else deadline
        try:
            undo.result(max(0.0, by - time.monotonic()))
        except (FutureTimeoutError, CancelledError):
            log.warning("undo goes on after the answer", extra={"sandbox": sandbox_id})

    def forget(self, sandbox_id: str) -> None:
        """The sandbox is stopped, whether it held anything or not."""
        self._known.step(sandbox_id, LifeEvent.STOP)

    def keep(self, sandbox_ids: Collection[str]) -> None:
        """Forget what is remembered of all other sandboxes: they ended, and nobody said so."""
        self._known.keep(sandbox_ids)

    def recovered(self) -> None:
        """What an earlier daemon left is known, and not yet taken up. The containers of an attach that is begun anew
        and fails for good are told why."""
        for sandbox in self._sandboxes.all():
            sandbox.attach_done.add_done_callback(partial(self._remember_failure, sandbox.pod))

    def reconcile_later(self, pods: Collection[Listed]) -> Future[None]:
        """Compare with what the runtime says there is, in a worker. To be called before its next event."""
        return self.reconciliation.reconcile_later(pods)

    def lacks(self, grants: Iterable[Grant], attached: tuple[AttachedRequest, ...]) -> bool:
        """Whether these CDI devices ask for anything that is not attached for their containers."""
        return self._claims.lacks(grants, attached)

    def limit_all(
        self, parts: tuple[Attachment, ...], container: str, cgroups_path: str, *, also_one: bool = False
    ) -> None:
        """Every line, the first too: a runtime that was given several may have mixed them up (docs/adr/0009). One alone
        the runtime has written, but for a container that nobody was asked about (`also_one`)."""
        lines = rdma_max(attached_of(parts)[0], container)
        if not lines:
            return
        where = f"{parts[0].pod}, container {container}"
        try:
            if also_one or len(lines) > 1:
                with self._spans.span("limit"):
                    self._limits.write(cgroups_path, lines, where)
        finally:
            self._limits.lift_at_end(cgroups_path, where)  # what the runtime wrote too, also when it is not to start

    def _remember_failure(self, pod: Pod, done: Future[None]) -> None:
        """The attach went on after RunPodSandbox was answered: what became of it is told to its containers."""
        error = None if done.cancelled() else done.exception()
        is_ended = any(it.ends and not it.is_given_up for it in self._sandboxes.of(pod.sandbox_id))
        if error is None or is_ended or (isinstance(error, NriRdmaError) and error.code is ErrorCode.RETURNING):
            return  # it went well, or the sandbox is being taken down anyway
        self._known.take(pod.sandbox_id).failure = Unserved(pod=pod, why=str(error))

    def _first(self, sandbox_id: str) -> Attachment | None:
        """The oldest of a sandbox's parts: it remembers the containers."""
        return next(iter(self._sandboxes.of(sandbox_id)), None)

    def end_older(self, pod: Pod) -> tuple[Future[None], ...]:
        """A pod has one sandbox at a time: what an older one of the same UID still holds is returned first. The undos,
        done or not."""
        older = {it.pod.sandbox_id for it in self._sandboxes.all() if it.pod.is_same_pod(pod)} - {pod.sandbox_id}
        undos = (self._sandboxes.end(sandbox_id) for sandbox_id in sorted(older))
        return tuple(undo for undo in undos if undo is not None)

    def _refuse_another(self, ours: CharDevice, theirs: tuple[int, int], where: str) -> None:
        """Our node takes the place of one at its path, and hides it. Where that is another device of this node, two
        parties want the container to have different devices of one name: neither may win in silence. Numbers that are
        nobody's are old ones (of a CDI file, say), and are put right."""
        found = shown_as(ours.path, theirs, self.chooser.node.devices)
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

    def pass_barrier(self, sandbox: Attachment, deadline: float) -> None:
        """Wait for an attach that still runs, a little. Raises NotReadyError."""
        if not sandbox.ends and self._may_wait(sandbox.pod.sandbox_id):
            settled(sandbox.attach_done, min(self.waits.barrier_s, deadline - time.monotonic()))
        if sandbox.state is Phase.ATTACHED:
            return
        if sandbox.is_given_up and not sandbox.part:
            raise _failed_late(Unserved(pod=sandbox.pod, why=sandbox.last_error))
        if sandbox.ends:
            raise returning(sandbox.pod)
        raise _not_ready(sandbox)

    def _await_present(self, sandbox: Attachment, container: str, deadline: float) -> None:
        """No container gets what may be another's by now: a number that the kernel took away, or, for its limits, the
        name of a device that the pod itself can change unseen."""
        looked = sandbox.looked_again
        if _has_limits(sandbox, container) or (looked is not None and looked.done() and looked.exception() is not None):
            looked = self._sandboxes.look_again(sandbox)  # what was missing may be back
        if looked is None or (looked.done() and looked.exception() is None):
            return
        with self._spans.span("barrier"):
            if not wait(looked, min(self.waits.barrier_s, deadline - time.monotonic())):
                raise NotReadyError(
                    ErrorCode.NOT_READY,
                    "network is not ready: the devices of this pod are looked at again",
                    where=str(sandbox.pod),
                    hint="nothing to do: the kubelet asks again",
                )

    def _may_wait(self, sandbox_id: str) -> bool:
        """One container of a sandbox waits in each of the kubelet's attempts; the others are answered at once."""
        now, known = time.monotonic(), self._known.take(sandbox_id)
        may = now - known.waited_at >= BARRIER_PAUSE_S
        if may:
            known.waited_at = now
        return may


def _alignment_words(alignment: Alignment) -> dict[str, str]:
    """What a span says of a container's GPUs."""
    return {
        "rdma.gpus": ",".join(map(str, alignment.gpus)),
        "rdma.gpus.source": alignment.source,
        "rdma.gpus.problem": alignment.contradiction or alignment.problem,
        "rdma.alignment": alignment.worst.name if alignment.worst is not None else "",
        "rdma.alignment.pairs": "; ".join(map(str, alignment.pairs)),
    }


def _moved(parts: tuple[Attachment, ...], names: Collection[str]) -> tuple[str, ...]:
    """Which of these netdevs of the host are in the pod by our doing, so that the runtime must not move them."""
    moves = [move for sandbox in parts if sandbox.record is not None for move in sandbox.record.plan.moves]
    return tuple(move.link.name for move in moves if move.link.name in names)


def _has_limits(sandbox: Attachment, container: str) -> bool:
    """Whether an attached sandbox's container gets limits, which know devices by name."""
    for item in sandbox.record.attached if sandbox.record is not None else ():
        request = item.admitted.request
        if request.limits is not None and request.scope.covers(container):
            return True
    return False


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


def _concerns(sandbox: Attachment, container: str, grants: Iterable[Grant]) -> bool:
    """Whether a container has to wait for a part of its sandbox: one that came with another container is that one's."""
    if not sandbox.part or any(grant.name in sandbox.cdi_devices for grant in grants):
        return True
    attached = sandbox.record.attached if sandbox.record is not None else ()
    return any(item.admitted.request.scope.covers(container) for item in attached)


def _not_decided(pod_name: str) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_READY,
        "network is not ready: this pod started while nri-rdma was away and is looked at now",
        where=pod_name,
        hint="nothing to do: the kubelet asks again",
    )


def _not_ready(sandbox: Attachment) -> NotReadyError:
    """The kubelet comes again after a second or so where a text begins like this, else after ten or more."""
    so_far = f"{sandbox.devices_done} of {sandbox.devices_total} devices attached"
    if sandbox.waits_for_older and not sandbox.planned.done():
        so_far = "the devices of this pod's older sandbox are on their way back"
    again = f", attempt {sandbox.attempt} of {sandbox.attempts}" if sandbox.attempt > 1 else ""
    return NotReadyError(
        ErrorCode.NOT_READY,
        f"network is not ready: {so_far}{again}",
        where=str(sandbox.pod),
        hint="nothing to do: the kubelet asks again",
        detail=sandbox.last_error,
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
