"""The gate: a container whose request says `prove` starts only after RDMA was proven to work in it.

The guard's OCI hook asks for the proof, or the hook for podman and Docker; the container exists at that moment, but its
program does not run yet. Law: a container without its proof does not start, also if the daemon is dead or slow or was
never asked; docs/gate.md has the two exceptions, in which no hook works. For a container without such a request the
gate only reads its requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Protocol, TypeAlias

from nri_rdma.attach.containers import ContainerProof
from nri_rdma.attach.holdings import Holdings
from nri_rdma.decide.advertised import DRIVER
from nri_rdma.decide.inject import AttachedRequest
from nri_rdma.decide.proving import port_tasks, proven_of
from nri_rdma.decide.unproven import refusal_of
from nri_rdma.engine.container import Container
from nri_rdma.engine.limiter import Limiter
from nri_rdma.engine.refusals import RefusedLately
from nri_rdma.errors import ErrorCode, LimitsError, NriRdmaError, ProofError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Asker
from nri_rdma.model.proof import DeviceProof, ProofAnswer, ProofEnd, ProofTask
from nri_rdma.observe.spans import Recorder, Span
from nri_rdma.text.annotations import asks_for_devices

SET_UP = "set up the guard: `nri-rdma install containerd` (or crio), and restart the runtime"
IMAGE_WAIT_S = 0.5
"""How long a container waits for the check of its image. The check takes milliseconds if the image's files are on this
host."""
HOOK_WAIT_S = 0.5
"""How long RunPodSandbox waits until it is known for which runtime handlers the guard's OCI hook runs, in seconds. All
other pods of the node wait meanwhile."""


class Proving(Protocol):
    """Proves RDMA in containers: nri_rdma.host.prover."""

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        """Return the result of the proof. Never raises. Blocks for at most `within_s` and half a second."""


Guarded: TypeAlias = Callable[[Asker, float], bool | None]
"""Returns whether the guard's hook runs for a pod's containers; None: nobody can know. Waits until the deadline
(seconds of `time.monotonic`), and raises NotReadyError if the answer is not known by then."""


class NoProver:
    """A prover that answers every task with "unavailable", for a daemon without a Python that has pyverbs."""

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        return ProofAnswer(end=ProofEnd.UNAVAILABLE, took_ms=0.0, text="verbs_python is empty")


def _nobody_knows(_asker: Asker, _by: float) -> bool | None:
    """Return None: it is not known whether the guard's OCI hook runs for the pod's containers. The default of
    `Gating.guarded`."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """The functions of the host that the gate uses."""

    prover: Proving = field(default_factory=NoProver)
    guarded: Guarded = _nobody_knows
    addresses: Callable[[int], tuple[IPv4Address | IPv6Address, ...]] = lambda _pid: ()
    """Returns the IP addresses in the network namespace of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A container that was created and whose program does not run yet."""

    where: str
    """The container's name in errors and log lines."""
    name: str
    container_id: str
    cgroups_path: str
    pid: int
    """Its first process; 0 if the hook does not report it."""
    memlock: int | None = None
    """The RLIMIT_MEMLOCK of its program, in bytes; None: the same as that of its first process now."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Its environment variables that choose an entry of the GID table, with their values."""
    bundle: str = ""
    """The folder of its OCI configuration; "" if the hook does not report it."""


class ChecksImages(Protocol):
    """Checks whether the libraries in containers' images can use the containers' devices:
    nri_rdma.engine.image_check."""

    def await_check(self, holdings: Holdings, created: Created, within_s: float) -> bool:
        """Begin the check of a container's image and wait for it at most `within_s` seconds; return whether it is done.
        A check that is not done continues in the background."""

    def refusal(self, holdings: Holdings, created: Created, within_s: float) -> NriRdmaError | None:
        """Return the error that refuses a container in which RDMA has to be tested before it starts; None if nothing is
        wrong. The errors: its image was not read within `within_s` seconds, the check failed, or the image lacks a
        library that its RDMA devices need."""


class NoImages:
    """An image check that finds nothing, for a daemon that checks no images."""

    def await_check(self, _holdings: Holdings, _created: Created, _within_s: float) -> bool:
        return True

    def refusal(self, _holdings: Holdings, _created: Created, _within_s: float) -> NriRdmaError | None:
        return None


class Gate:
    """Decides which containers need a proof (a test that RDMA works in them before their program starts), has it made,
    and refuses containers without it. Thread-safe."""

    def __init__(self, gating: Gating, limiter: Limiter, refused: RefusedLately, spans: Recorder) -> None:
        self._gating = gating
        self.limiter = limiter
        self.refused = refused
        self._spans = spans
        self.images: ChecksImages = NoImages()
        self.on_proven: list[Callable[[frozenset[str]], None]] = []
        """Listeners: called with a container's CDI devices after RDMA was tested in it, whether the test succeeded or
        failed; they must not block."""

    def refuse_unhooked(self, pod: Pod, where: str, asker: Asker, deadline: float) -> None:
        """Raise ProofError for a pod that requests a proof (a test of RDMA before its containers start), if no OCI hook
        runs for its containers to ask for it. Raise NotReadyError if it is not known in time whether a hook runs;
        `deadline` is in seconds of `time.monotonic`. `where` is the place of the request that says `prove`."""
        is_guarded = self._gating.guarded(asker, min(deadline, time.monotonic() + HOOK_WAIT_S))
        if is_guarded:
            return
        handler = asker.runtime_handler
        which = f"runtime handler {handler}" if handler else "the default runtime handler"
        what = (
            f"prove needs the guard's hook, and it is not known whether it runs for {which}"
            if is_guarded is None
            else f"prove needs the guard's hook, and it does not run for {which}"
        )
        raise ProofError(ErrorCode.PROOF_NO_HOOK, what, where=f"{pod}, {where}", hint=SET_UP)

    def asks(self, holdings: Holdings, container: str) -> bool:
        """Return whether a request of the container says `prove`: then RDMA is tested in the container before it
        starts."""
        return bool(proven_of(holdings.attached, container))

    def is_due(self, holdings: Holdings, container: str, container_id: str) -> bool:
        """Return whether RDMA has to be proven in the container and was not proven yet."""
        return self.asks(holdings, container) and not holdings.containers.is_proven(container, container_id)

    def prove(self, holdings: Holdings, created: Created, within_s: float) -> None:
        """Write a container's rdma limits, prove RDMA in the container, and remember the result. Raise NriRdmaError if
        the proof fails, or if the limits cannot be written. Call it only if the proof `is_due`."""
        proven = proven_of(holdings.attached, created.name)
        with self._spans.span("prove") as span:
            answer, refusal = self._proved(holdings, proven, created, within_s, span)
            proof = ContainerProof(
                container_id=created.container_id,
                ports=tuple(map(port_words, answer.proofs)),
                took_ms=answer.took_ms,
                at=time.time(),
                code=str(refusal.code) if refusal is not None else "",
                why=refusal.for_author if refusal is not None else "",
            )
            holdings.containers.remember_proof(created.name, proof)
            span.attributes["rdma.proof"] = "; ".join(proof.ports)
            span.attributes["rdma.proof.ms"] = proof.took_ms
            if refusal is not None:
                self.refused.note("createRuntime", holdings.pod, refusal, created.name)
            names = frozenset(it.admitted.request.cdi_device for it in proven) - {""}
            for listener in self.on_proven if names else ():
                listener(names)
            if refusal is not None:
                raise refusal

    def prove_alone(
        self,
        holdings: Holdings,
        pod: Pod,
        memlock: int | None,
        indexes: Mapping[str, str],
        bundle: str,
        within_s: float,
    ) -> None:
        """Check the image of a container of podman or Docker, which has no pod, and test RDMA in it if a request says
        `prove`. `indexes`: its variables that choose an entry of the GID table; `bundle`: the folder of its OCI
        configuration. Raise NriRdmaError if the test fails or is not done within `within_s` seconds."""
        created = Created(
            where=str(pod),
            name=pod.name,
            container_id=pod.sandbox_id,
            cgroups_path=pod.cgroups_path,
            pid=pod.pid,
            memlock=memlock,
            indexes=indexes,
            bundle=bundle,
        )
        self.images.await_check(holdings, created, IMAGE_WAIT_S)
        if self.is_due(holdings, pod.name, pod.sandbox_id):
            self.prove(holdings, created, within_s)

    def refuse_unproven(self, holdings: Holdings, container: str, container_id: str, cgroups_path: str) -> None:
        """Kill a container that is about to start although the required test of RDMA in it was not made, and raise
        ProofError. An error alone is not enough: CRI-O starts the container in spite of it."""
        if not self.is_due(holdings, container, container_id):
            return
        where = f"{holdings.pod}, container {container}"
        self.limiter.kill(holdings, container, cgroups_path)
        raise ProofError(
            ErrorCode.PROOF_NO_HOOK,
            "nothing was proven: the guard's hook did not run for this container, or asked an earlier daemon",
            where=where,
            hint=f"the container is made again; if this repeats, {SET_UP}",
        )

    def _proved(
        self,
        holdings: Holdings,
        proven: tuple[AttachedRequest, ...],
        created: Created,
        within_s: float,
        span: Span,
    ) -> tuple[ProofAnswer, NriRdmaError | None]:
        """Test RDMA in the container within `within_s` seconds. Return the result, and the error that refuses the
        container; the error is None if it may run. `proven` are the attached requests that require the test."""
        unasked = ProofAnswer(end=ProofEnd.UNAVAILABLE, took_ms=0.0)
        if not created.pid:
            what, hint = "the guard's hook is of an older release, which does not ask for a proof", "install it again"
            return unasked, ProofError(ErrorCode.PROOF_UNAVAILABLE, what, where=created.where, hint=f"{hint}: {SET_UP}")
        try:
            self.limiter.limit_all(holdings, created.name, created.cgroups_path)
        except LimitsError as error:
            return unasked, error
        refusal = self.images.refusal(holdings, created, IMAGE_WAIT_S)
        if refusal is not None:
            return unasked, refusal
        task = ProofTask(
            where=created.where,
            pid=created.pid,
            cgroups_path=created.cgroups_path,
            devices=port_tasks(proven, created.indexes),
            memlock=created.memlock,
            addresses=self._gating.addresses(created.pid),
        )
        span.attributes["rdma.devices"] = ",".join(it.device for it in task.devices)
        answer = self._gating.prover.prove(task, within_s)
        return answer, refusal_of(task, answer, within_s)


def refuse_unasked(container: Container, attached: tuple[AttachedRequest, ...], prefix: str) -> None:
    """Raise ProofError for a container that is being created, if RDMA has to be tested in it before its start and it
    has no OCI hook that asks the daemon for the test. Not called for containers of podman and Docker, which bring their
    own hook."""
    if not proven_of(attached, container.name) or container.was_there:
        return
    if container.guards or container.guarded_devices or container.has_guard_resource:
        return
    if container.has_handlers_guard and (
        asks_for_devices(container.annotations, prefix)
        or any(it.admitted.request.cdi_device.startswith(f"{DRIVER}/") for it in attached)
    ):
        return
    raise ProofError(
        ErrorCode.PROOF_NO_HOOK,
        "prove needs the guard's hook, and this container has none that would ask",
        where=f"{container.pod_name}, container {container.name}",
        hint=f"{SET_UP}; a share brings it by guard_hook, another driver's CDI device by `nri-rdma cdi guard`",
    )


def port_words(proof: DeviceProof) -> str:
    """Return text for people: how data was moved through a port, or the step of the proof that failed."""
    port = f"{proof.device}:{proof.port}"
    if proof.problem is not None:
        return f"{port} failed at {proof.problem.step}"
    index = f" by GID {proof.gid_index}" if proof.gid_index is not None else ""
    return f"{port} {proof.transport}{index}"
