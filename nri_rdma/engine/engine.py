"""The interface for doors: one engine serves every door. The steps are in run_pod, create_container, start_container
and synchronize.

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

from nri_rdma.attach.attachments import Attachments
from nri_rdma.decide.decision import MemlockBounds
from nri_rdma.decide.policy import Policy
from nri_rdma.engine.alignment_check import AlignmentCheck
from nri_rdma.engine.barrier import Barrier
from nri_rdma.engine.container import Container, FindImage, Listed, ShowGpus, Start
from nri_rdma.engine.create_container import ContainerCreation
from nri_rdma.engine.evidence import EvidenceCollector
from nri_rdma.engine.gate import Gate, Gating
from nri_rdma.engine.kubelet import Kubelet, KubeletEvidence
from nri_rdma.engine.late import LateAttach
from nri_rdma.engine.limiter import Limiter, Limits
from nri_rdma.engine.node_cache import NodeCache, NodeReader
from nri_rdma.engine.offering import Offering
from nri_rdma.engine.placer import Placer
from nri_rdma.engine.promises import Promises
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.engine.rereading import Rereading
from nri_rdma.engine.reservations import Reservations
from nri_rdma.engine.run_pod import PodStart
from nri_rdma.engine.sandbox import LifeEvent, Sandboxes, Unserved
from nri_rdma.engine.shares import ShareBook
from nri_rdma.engine.specs import Read, SpecCache
from nri_rdma.engine.start_container import ContainerStart
from nri_rdma.engine.synchronize import Synchronizer
from nri_rdma.engine.verifier import Verifier
from nri_rdma.errors import NriRdmaError
from nri_rdma.model.adoption import Adoption
from nri_rdma.model.edits import ContainerEdits
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.waits import Waits
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.annotations import asks

log = logging.getLogger(__name__)


class Engine:
    """Safe for use by several threads."""

    def __init__(
        self,
        *,
        node: NodeCache,
        policy: Policy,
        reservations: Reservations,
        specs: SpecCache,
        attachments: Attachments,
        workers: Workers,
        readers: Workers,
        spans: Recorder,
        limits: Limits,
        prefix: str,
        kubelet: Kubelet | None = None,
        shares: ShareBook | None = None,
        rereads: tuple[Read, ...] = (),
        adoption: Adoption = Adoption(),  # noqa: B008 - frozen
        waits: Waits = Waits(),  # noqa: B008 - frozen
        memlock: MemlockBounds = MemlockBounds(),  # noqa: B008 - frozen
        gating: Gating = Gating(),  # noqa: B008 - frozen
    ) -> None:
        """Wire an engine. `workers` attach and compare, `readers` rescan the node, `prefix` is that of our annotations.

        `rereads` start every reading that may explain a container's devices. `adoption` and `memlock` are what is known
        of devices from others, and of RLIMIT_MEMLOCK, before the runtime connects. `gating` proves containers.
        """
        self.node, self.specs, self.reservations, self.attachments = node, specs, reservations, attachments
        self.prefix, self._spans = prefix, spans
        self.sandboxes = Sandboxes(attachments.knows)
        """What is remembered of sandboxes besides their attachments."""
        self.offering = offering = Offering(node, policy, adoption, memlock)
        self.kubelet = KubeletEvidence(kubelet, shares or ShareBook(), specs, self.sandboxes)
        self.refused = RefusedLately(names_holders=lambda: offering.policy.names_holders)
        """What was refused lately."""
        self.barrier = Barrier(attachments, self.sandboxes, spans, waits)
        reader = NodeReader(node, readers, attachments.being_released)
        self._placer = placer = Placer(
            node=reader,
            offering=offering,
            reservations=reservations,
            specs=specs,
            kubelet=self.kubelet,
            spans=spans,
        )
        self.on_refused = placer.on_refused
        """Called with the CDI devices of a pod or container that is refused, and the error; must not block."""
        limiter = Limiter(limits, spans)
        self.leaves_limits = limiter.left_to_runtime
        """Returns whether the runtime is to be told of a container's rdma limits: its OCI runtime can write them."""
        gate = Gate(gating, limiter, self.refused, spans)
        self._promises = Promises(attachments.knows, placer, node, self.refused, prefix, spans)
        self.promise = self._promises.make
        """Decides and reserves for a container that stands for itself and is not made yet; `run_pod` for the same
        sandbox attaches that. Returns its edits, or raises what refuses it."""
        self._pods = PodStart(
            attachments, self.sandboxes, offering, placer, self.kubelet, gate, self.barrier, self._promises
        )
        rereading = Rereading(rereads, self.sandboxes)
        self._evidence = evidence = EvidenceCollector(
            specs, self.kubelet, self.sandboxes, rereading, offering, attachments, spans
        )
        late = LateAttach(attachments, self.sandboxes, placer, self.barrier, evidence, self.kubelet, offering)
        alignment = AlignmentCheck(specs, self.sandboxes, spans)
        self._containers = ContainerCreation(
            attachments, self.sandboxes, evidence, late, self.barrier, alignment, offering, node, prefix, spans
        )
        self.starts = ContainerStart(attachments, self.sandboxes, limiter, alignment, gate)
        verifier = Verifier(
            attachments,
            evidence,
            self.kubelet.claims,
            offering,
            limiter,
            prefix,
            alignment.remember,
        )
        self.synchronizer = Synchronizer(
            attachments, workers, spans, self.sandboxes, specs, self.kubelet.claims, verifier, prefix, self.run_pod
        )

    @property
    def unserved(self) -> tuple[Unserved, ...]:
        """The pods that ask for devices and run, or wait, without them."""
        return self.sandboxes.unserved()

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod with these annotations asks us for anything. Every pod of the node pays for the call."""
        return asks(annotations, self.prefix)

    def may_ask(self, annotations: Mapping[str, str], pod_uid: str) -> bool:
        """Return whether a pod with these annotations may get something: it asks, or its CDI devices, shares or claims
        may, or it is not known yet whether it has a claim."""
        kubelet = self.kubelet
        asks_others = kubelet.asks_about_devices or kubelet.asks_about_shares or self._placer.waits_for_specs
        return self.asks(annotations) or asks_others or kubelet.claims.may_have(pod_uid)

    def start_of(self, pod: Pod, annotations: Mapping[str, str], asker: Asker) -> Start:
        """Return what `run_pod` takes: the annotations are parsed, and a wrong one is refused there."""
        return Start.of(pod, annotations, asker, self.prefix, self._spans)

    def run_pod(self, start: Start, deadline: float) -> None:
        """Give the pod what it asks for, or raise. An attach that outlives the deadline goes on; the pod's containers
        wait for it."""
        try:
            self._pods.run(start, deadline)
        except NriRdmaError as error:
            self.refused.note("RunPodSandbox" if start.pod.is_listed else "createRuntime", start.pod, error)
            raise

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the sandbox has attachments."""
        return self.attachments.knows(sandbox_id)

    def remembers(self, sandbox_id: str) -> bool:
        """Return whether the end of the sandbox has to be handled: it has attachments, or lacks what it asks for."""
        known = self.sandboxes.get(sandbox_id)
        lacks = known is not None and (known.unserved is not None or known.failure is not None)
        return lacks or self.attachments.knows(sandbox_id)

    def concerns(self, container: Container) -> bool:
        """Return whether `create_container` may have anything to do: the pod asks or has attachments, or the container
        has RDMA devices from others, or the guard will ask about it."""
        if self.attachments.knows(container.sandbox_id) or self.asks(container.annotations) or container.shares:
            return True
        return self._evidence.concerns(container) or container.has_guard_resource

    def create_container(self, container: Container, deadline: float) -> ContainerEdits:
        """Return a container's edits, from memory. Raise when its pod asked for devices and nothing is attached.

        If the container's CDI devices ask for more than was attached at pod start, that is attached here.
        """
        try:
            return self._containers.create(container, deadline)
        except Exception as error:
            self.refused.note("CreateContainer", container.pod, error, container.name)
            raise

    def container_created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """Record that CreateContainer of this container is being answered. `status` shows the container's use while its
        cgroup exists, and shows it as not started until it starts."""
        self.starts.created(sandbox_id, container, cgroups_path)

    def start_container(
        self,
        sandbox_id: str,
        container: str,
        cgroups_path: str,
        gpus: ShowGpus | None = None,
        container_id: str = "",
        image: FindImage | None = None,
    ) -> None:
        """Write the limits that the runtime was not given, before the container's process runs; `gpus` returns its GPU
        evidence, `image` finds its image. Raise LimitsError, ProofError, or PlacementError for GPUs too far away."""
        holdings = self.attachments.of(sandbox_id)  # before: the sandbox may end meanwhile, and then has none
        try:
            self.starts.start(sandbox_id, container, cgroups_path, container_id, gpus, image)
        except Exception as error:
            if holdings:
                self.refused.note("StartContainer", holdings.pod, error, container)
            raise

    def stop_pod(self, sandbox_id: str, deadline: float) -> None:
        """Return everything to the host, as far as the deadline allows. What remains continues in the background: what
        is there is made what it was, which a blocking attach waits for, and released, which the second call waits for,
        and a pod that is placed meanwhile. Never raises."""
        self.forget(sandbox_id)
        self._promises.withdraw(sandbox_id)
        was_ending = all(it.now.ends for it in self.attachments.of(sandbox_id))
        waits = self.barrier.waits
        returned = (
            self.attachments.end(sandbox_id)
            if was_ending
            else self.attachments.bring_home(sandbox_id, restored=waits.blocking)
        )
        if returned is None:
            return
        by = min(deadline, time.monotonic() + waits.barrier_s) if was_ending else deadline
        try:
            returned.result(max(0.0, by - time.monotonic()))
        except (FutureTimeoutError, CancelledError):
            log.warning("undo goes on after the answer", extra={"sandbox": sandbox_id})

    def forget(self, sandbox_id: str) -> None:
        """Forget a sandbox that was stopped, whether it had attachments or not."""
        self.sandboxes.step(sandbox_id, LifeEvent.STOP)

    def recovered(self) -> None:
        """Handle that the journals of an earlier daemon were read, and their attachments not yet adopted. An attach
        that is retried and fails for good is reported to its containers."""
        for it in self.attachments.all():
            it.attach_done.add_done_callback(partial(self._pods.remember_failure, it.pod))
        self.starts.journals_read()

    def synchronize(self, pods: Collection[Listed]) -> Future[None]:
        """Compare with the runtime's list of pods, in a worker. To be called before the runtime's next event."""
        return self.synchronizer.reconcile_later(pods)
