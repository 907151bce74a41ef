"""The interface of the engine: one engine serves every door. The steps are in run_pod, create_container,
start_container and synchronize.

Fail closed: a request that cannot be fulfilled is refused with an error, and a container whose pod asked for devices
gets no edits before these are attached. Calls have a deadline in seconds of `time.monotonic` and return before it.
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
    """The one object that doors call for pods and containers. Thread-safe."""

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
        """Wire an engine.

        `workers`: threads that attach devices and compare pods with the runtime's list. `readers`: threads that rescan
        the node. `prefix`: the prefix of nri-rdma's annotations. `rereads`: functions that start a reading which may
        explain a container's device nodes. `adoption`: the administrator's settings for devices from other programs.
        `memlock`: what is known about RLIMIT_MEMLOCK before the runtime connects. `gating`: the host's functions that
        prove RDMA in containers.
        """
        self.node, self.specs, self.reservations, self.attachments = node, specs, reservations, attachments
        self.prefix, self._spans = prefix, spans
        self.sandboxes = Sandboxes(attachments.knows)
        """The memory about sandboxes, besides their attachments."""
        self.offering = offering = Offering(node, policy, adoption, memlock)
        self.kubelet = KubeletEvidence(kubelet, shares or ShareBook(), specs, self.sandboxes)
        self.refused = RefusedLately(names_holders=lambda: offering.policy.names_holders)
        """The pods and containers that were refused in the last minutes."""
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
        """Listeners: called with the CDI devices of a pod or container that is refused, and the error; they must not
        block."""
        limiter = Limiter(limits, spans)
        self.leaves_limits = limiter.left_to_runtime
        """Returns whether the runtime's answer includes a container's rdma limits, because its OCI runtime can write
        them."""
        gate = Gate(gating, limiter, self.refused, spans)
        self._promises = Promises(attachments.knows, placer, node, self.refused, prefix, spans)
        self.promise = self._promises.make
        """Selects and reserves devices for a container of podman or Docker that has no pod and is not created yet;
        `run_pod` for the same sandbox id attaches these devices later. Returns the container's edits, or raises the
        error that refuses it."""
        self._pods = PodStart(
            attachments, self.sandboxes, offering, placer, self.kubelet, gate, self.barrier, self._promises
        )
        rereading = Rereading(rereads, self.sandboxes)
        self._evidence = evidence = EvidenceCollector(
            specs, self.kubelet, self.sandboxes, rereading, offering, attachments
        )
        late = LateAttach(attachments, self.sandboxes, placer, self.barrier, evidence, self.kubelet)
        alignment = AlignmentCheck(specs, self.sandboxes, spans)
        self._containers = ContainerCreation(
            attachments, self.sandboxes, evidence, late, self.barrier, alignment, offering, specs, node, prefix, spans
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
        """The pods that ask for devices, but run or wait without them."""
        return self.sandboxes.unserved()

    def asks(self, annotations: Mapping[str, str]) -> bool:
        """Return whether a pod's annotations request anything from nri-rdma. Runs for every pod of the node, so it is
        cheap."""
        return asks(annotations, self.prefix)

    def may_ask(self, annotations: Mapping[str, str], pod_uid: str) -> bool:
        """Return whether a pod may get devices: by its annotations, CDI devices, device-plugin shares or claims. True
        also while it is not known yet whether the pod has a claim. False means that `run_pod` has nothing to do."""
        kubelet = self.kubelet
        asks_others = kubelet.asks_about_devices or kubelet.asks_about_shares or self._placer.waits_for_specs
        return self.asks(annotations) or asks_others or kubelet.claims.may_have(pod_uid)

    def start_of(self, pod: Pod, annotations: Mapping[str, str], asker: Asker) -> Start:
        """Parse a pod's annotations into the value that `run_pod` takes. A wrong annotation is refused by `run_pod`."""
        return Start.of(pod, annotations, asker, self.prefix, self._spans)

    def run_pod(self, start: Start, deadline: float) -> None:
        """Give the pod the devices that it asks for, or raise the error that refuses it. An attach that is not done by
        the deadline goes on, and the pod's containers wait for it."""
        try:
            self._pods.run(start, deadline)
        except NriRdmaError as error:
            self.refused.note("RunPodSandbox" if start.pod.is_listed else "createRuntime", start.pod, error)
            raise

    def knows(self, sandbox_id: str) -> bool:
        """Return whether the sandbox has attachments."""
        return self.attachments.knows(sandbox_id)

    def remembers(self, sandbox_id: str) -> bool:
        """Return whether the end of the sandbox has to be handled, because it has attachments or lacks devices that it
        asks for."""
        known = self.sandboxes.get(sandbox_id)
        lacks = known is not None and (known.unserved is not None or known.failure is not None)
        return lacks or self.attachments.knows(sandbox_id)

    def concerns(self, container: Container) -> bool:
        """Return whether `create_container` may have anything to do: the pod requests devices, has attachments or lost
        them by a failed attach, or the container has RDMA devices from other programs or requests the guard resource.
        The guard is an OCI hook that keeps a container from starting without its devices."""
        if self.attachments.knows(container.sandbox_id) or self.asks(container.annotations) or container.shares:
            return True
        known = self.sandboxes.get(container.sandbox_id)
        if known is not None and known.failure is not None:
            return True
        return self._evidence.concerns(container) or container.has_guard_resource

    def create_container(self, container: Container, deadline: float) -> ContainerEdits:
        """Return a container's edits, from memory. Attach devices for those of its CDI devices and shares that the
        pod's start did not know. Raise NriRdmaError if its pod asked for devices and has none, or if a device cannot be
        attached by `deadline`."""
        try:
            edits = self._containers.create(container, deadline)
        except Exception as error:
            self.refused.note("CreateContainer", container.pod, error, container.name)
            raise
        known = self.sandboxes.get(container.sandbox_id)
        if known is not None and known.unserved is not None:
            known.unserved = known.unserved.without(container.name)
        return edits

    def container_created(self, sandbox_id: str, container: str, cgroups_path: str) -> None:
        """Record that CreateContainer of this container is being answered. From now on `status` shows the RDMA usage of
        the container's cgroup, and shows the container as not started until it starts."""
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
        """Write the rdma limits that the runtime does not write, before the container's process runs, and check its
        GPUs and its image.

        `gpus` returns which GPUs the container shows, `image` where its image is; None: not known. Raise LimitsError if
        a limit cannot be written, ProofError if RDMA had to be proven in the container and was not, and PlacementError
        if the GPUs are too far from its devices.
        """
        holdings = self.attachments.of(sandbox_id)  # before the start: a sandbox that ends meanwhile has none after it
        try:
            self.starts.start(sandbox_id, container, cgroups_path, container_id, gpus, image)
        except Exception as error:
            if holdings:
                self.refused.note("StartContainer", holdings.pod, error, container)
            raise

    def stop_pod(self, sandbox_id: str, deadline: float) -> None:
        """Return the sandbox's devices to the host, as far as the deadline allows; the rest continues in the
        background. Never raises.

        The first call waits until the devices are back on the host; where attaches block (setting), it also waits until
        their host configuration is restored. A further call for a sandbox that already ends waits until the devices are
        free for other pods.
        """
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
            log.warning("the return of devices goes on after the answer", extra={"sandbox": sandbox_id})

    def forget(self, sandbox_id: str) -> None:
        """Forget everything about a stopped sandbox except its id. Its attachments are not touched."""
        self.sandboxes.step(sandbox_id, LifeEvent.STOP)

    def recovered(self) -> None:
        """Take notice that the journals of an earlier daemon were read; call it before their attachments are adopted.
        If an attach of that daemon is retried and finally fails, the pod's containers are refused with the reason."""
        for it in self.attachments.all():
            it.attach_done.add_done_callback(partial(self._pods.remember_failure, it.pod))
        self.starts.journals_read()

    def synchronize(self, pods: Collection[Listed]) -> Future[None]:
        """Have a worker compare the engine's sandboxes with the runtime's list of pods. Call it before the runtime's
        next event is handled."""
        return self.synchronizer.reconcile_later(pods)
