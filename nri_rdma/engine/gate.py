"""The gate: a container whose request says `prove` starts only when RDMA was proven to work in it.

The guard's hook asks, or that of podman and Docker: the container is created then and does not run. Law: what was not
proven does not start, whoever is dead, late or was never asked; two cases without a working hook remain (docs/gate.md).
A container without such a request pays a look at its requests.
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
"""How long a container waits for the check of its image, which takes milliseconds where its files are on this host."""
HOOK_WAIT_S = 0.5
"""How long RunPodSandbox waits for the runtime to say which of its handlers have the guard: every pod waits with it."""


class Proving(Protocol):
    """Proves RDMA in containers: nri_rdma.host.prover."""

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        """Return what came of it. Never raises; blocks for `within_s` at most, and half a second more."""


Guarded: TypeAlias = Callable[[Asker, float], bool | None]
"""Returns whether the guard's hook runs for the containers of such a pod, None where nobody can tell. Waits
until that second of `time.monotonic`, and raises NotReadyError where it is not known then."""


class NoProver:
    """For a daemon that cannot prove anything."""

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        return ProofAnswer(end=ProofEnd.UNAVAILABLE, took_ms=0.0, text="verbs_python is empty")


def _nobody_knows(_asker: Asker, _by: float) -> bool | None:
    """Return that nobody can tell whether the hook runs."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """The host's part of a gate: who proves RDMA, who knows which containers have the guard's hook, and what returns
    the addresses of a process's network namespace."""

    prover: Proving = field(default_factory=NoProver)
    guarded: Guarded = _nobody_knows
    addresses: Callable[[int], tuple[IPv4Address | IPv6Address, ...]] = lambda _pid: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """A container that was created and does not run: `where` names it for people, `pid` is its first process, 0 where
    the hook does not say, `memlock` the RLIMIT_MEMLOCK that holds its program, None: as that process has it. `indexes`
    are its own variables that force an entry of the GID table. `bundle` is where its OCI configuration is, "" where the
    hook does not say."""

    where: str
    name: str
    container_id: str
    cgroups_path: str
    pid: int
    memlock: int | None = None
    indexes: Mapping[str, str] = field(default_factory=dict)
    bundle: str = ""


class ChecksImages(Protocol):
    """Checks whether the images of containers can use their devices: nri_rdma.engine.image_check."""

    def await_check(self, holdings: Holdings, created: Created, within_s: float) -> bool:
        """Have it told before a container runs; return whether that is done within that time. It goes on after it: a
        slow image is no reason to refuse a container that is not proven."""

    def refusal(self, holdings: Holdings, created: Created, within_s: float) -> NriRdmaError | None:
        """Return why a container that is proven must not run; None where its image can use its devices."""


class NoImages:
    """For a daemon that checks no image."""

    def await_check(self, _holdings: Holdings, _created: Created, _within_s: float) -> bool:
        return True

    def refusal(self, _holdings: Holdings, _created: Created, _within_s: float) -> NriRdmaError | None:
        return None


class Gate:
    """Safe for use by several threads."""

    def __init__(self, gating: Gating, limiter: Limiter, refused: RefusedLately, spans: Recorder) -> None:
        self._gating = gating
        self.limiter = limiter
        self._refused = refused
        self._spans = spans
        self.images: ChecksImages = NoImages()
        self.on_proven: list[Callable[[frozenset[str]], None]] = []
        """Called with the CDI devices of a container that was proven, or refused. Must not block."""

    def refuse_unhooked(self, pod: Pod, where: str, asker: Asker, deadline: float) -> None:
        """Raise ProofError for a pod of whose containers nothing would be proven, since no hook runs for them, and
        NotReadyError as long as that is not known. `where` is the request that is to be proven."""
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
        """Return whether the container is to be proven before it starts."""
        return bool(proven_of(holdings.attached, container))

    def is_due(self, holdings: Holdings, container: str, container_id: str) -> bool:
        """Return whether the container is to be proven, and was not yet."""
        return self.asks(holdings, container) and not holdings.containers.is_proven(container, container_id)

    def prove(self, holdings: Holdings, created: Created, within_s: float) -> None:
        """Prove RDMA in a container for which that is due, once its limits are written. Raise NriRdmaError, also where
        they cannot be written."""
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
                self._refused.note("createRuntime", holdings.pod, refusal, created.name)
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
        """Check the image of a container that stands for itself, and prove RDMA in it, unless that was done, or is not
        asked for. Raise as `prove`."""
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
        """Raise ProofError for a container that is about to start without its proof. Kill it: CRI-O starts it whatever
        we answer."""
        if not self.is_due(holdings, container, container_id):
            return
        where = f"{holdings.pod}, container {container}"
        self.limiter.kill(holdings, container, cgroups_path)
        raise ProofError(
            ErrorCode.PROOF_NO_HOOK,
            "nothing was proven: the guard's hook did not run for this container, or asked an earlier daemon",
            where=where,
            hint=f"the container is made again; if it stays so {SET_UP}",
        )

    def _proved(
        self,
        holdings: Holdings,
        proven: tuple[AttachedRequest, ...],
        created: Created,
        within_s: float,
        span: Span,
    ) -> tuple[ProofAnswer, NriRdmaError | None]:
        """Return what was proven, and why the container is refused; None where it is not."""
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
    """Raise ProofError for a container that is being created, of which something is to be proven, and whose hooks will
    not ask for it. One that no runtime lists has hooks of its own door."""
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
    """Return how data was moved through a port, or that it was not, for people."""
    port = f"{proof.device}:{proof.port}"
    if proof.problem is not None:
        return f"{port} failed at {proof.problem.step}"
    index = f" by GID {proof.gid_index}" if proof.gid_index is not None else ""
    return f"{port} {proof.transport}{index}"
