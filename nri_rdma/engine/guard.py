"""The guard's answer: whether a container that was created, and does not run yet, has what its pod asked for.

The OCI hook asks (hooks/nri-rdma-hook), because it runs even when the daemon does not. Law: a container is complete
when everything of its sandbox that concerns it is attached, and its OCI configuration has the current nodes and
numbers, and the variables, that we would give it. An earlier answer of ours proves nothing beside that. A container
with the guard resource needs such an answer as well: its hook may see no annotation, and of a claim that no container
names it sees nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from nri_rdma.attach.attachment import Attachment
from nri_rdma.attach.containers import Unstarted
from nri_rdma.attach.holdings import Holdings
from nri_rdma.attach.record import Phase, SandboxRecord
from nri_rdma.decide.inject import AttachedRequest, inject
from nri_rdma.engine.gate import IMAGE_WAIT_S, Created, Gate
from nri_rdma.engine.refusals import returning
from nri_rdma.engine.sandbox import Sandbox
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.device import DeviceNumbers
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.waiting import settled
from nri_rdma.text.annotations import asks_for_devices

log = logging.getLogger(__name__)

SEEN_FILE = "guard"
"""File in the state directory: its age is that of the hook's last question, also of one to an earlier daemon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The container to verify, as its hook sees it: `pod` is namespace/name, `devices` and `env` are the nodes by path
    and the names of the variables in its OCI configuration, `pool` the pool of whose shares it has some, `cdi_device`
    the CDI device that it has, of a claim of ours or of another driver with our key, `claims` the CDI devices of all
    claims that its pod has of our driver, `resource` the guard resource where it has that. `pid` is its first process,
    and `bundle` where its OCI configuration is (0 and "" where the hook does not say). `memlock` is the RLIMIT_MEMLOCK
    that holds its program, None where its configuration does not say it, and `indexes` are its variables that force an
    entry of the GID table."""

    sandbox_id: str
    pod: str
    container: str
    container_id: str
    annotations: Mapping[str, str]
    devices: Mapping[str, DeviceNumbers]
    env: frozenset[str]
    pool: str = ""
    cdi_device: str = ""
    claims: tuple[str, ...] = ()
    resource: str = ""
    pid: int = 0
    memlock: int | None = None
    indexes: Mapping[str, str] = field(default_factory=dict)
    bundle: str = ""


Named: TypeAlias = Callable[[str, str], Collection[str] | None]
"""Returns the CDI devices that the containers of a pod name, by sandbox id and NAMESPACE/NAME; None where the kubelet
does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacts:
    """Calls of guard hooks: of how many containers since the start, how many were refused, and the time of the last
    one, in seconds since the epoch (0: never in this boot)."""

    asked: int = 0
    refused: int = 0
    last: float = 0.0


class Guard:
    """Answers the hooks. Safe for use by several threads."""

    def __init__(
        self,
        sandboxes: Callable[[str], Holdings],
        known: Callable[[str], Sandbox | None],
        named: Named,
        gate: Gate,
        spans: Recorder,
        prefix: str,
        state_dir: Path,
    ) -> None:
        """`sandboxes` returns the attachments of a sandbox id, `known` what else is remembered of it."""
        self._sandboxes = sandboxes
        self._known = known
        self._named = named
        self._limiter = gate.limiter
        self._gate = gate
        self._spans = spans
        self._prefix = prefix
        self._seen = state_dir / SEEN_FILE
        self._lock = threading.Lock()
        self._asked = 0
        self._refused = 0
        self._last = _age_of(self._seen)

    def verify(self, subject: Subject, by: float = 0.0) -> str:
        """Return the line with which the container is refused; "" when it is complete. Write its rdma limits, where
        that is left to the daemon. Wait for an unfinished attach or check until `by` (seconds of `time.monotonic`): no
        other pod of the node waits with this one."""
        return self._refusal("verify", subject, lambda holdings: self._refuse(subject, holdings, by), asked=1)

    def is_to_be_proven(self, subject: Subject) -> bool:
        """Return whether a container that is complete must not run before `prove`."""
        holdings = self._sandboxes(subject.sandbox_id)
        return bool(holdings) and self._gate.is_due(holdings, subject.container, subject.container_id)

    def prove(self, subject: Subject, within_s: float) -> str:
        """Return the line with which the container is refused; "" when it is complete, and RDMA works in it."""

        def refuse(holdings: Holdings) -> None:
            self._refuse(subject, holdings, 0.0)
            if holdings and self._gate.is_due(holdings, subject.container, subject.container_id):
                self._gate.prove(holdings, _created(subject, holdings), within_s)

        return self._refusal("createRuntime", subject, refuse, asked=0)  # `verify` counted the container

    def _refusal(self, name: str, subject: Subject, refuse: Callable[[Holdings], None], *, asked: int) -> str:
        """Return the line of what `refuse` raises, "" where it raises nothing; recorded as a span of that name. `asked`
        containers are counted."""
        attributes = {
            "k8s.pod.name": subject.pod,
            "k8s.container.name": subject.container,
            "container.id": subject.container_id,
            "sandbox": subject.sandbox_id,
        }
        holdings, refusal = self._sandboxes(subject.sandbox_id), ""
        with self._spans.span(name, attributes) as span:
            try:
                refuse(holdings)
            except NriRdmaError as error:
                span.error = str(error)
                refusal = error.for_author
                if not error.is_logged:
                    log.warning(
                        "the guard keeps a container from starting",
                        extra={"pod": subject.pod, "container": subject.container, "error": span.error},
                    )
        self._note(asked, bool(refusal))
        answered = _answered(subject, holdings)
        if answered is not None and not refusal:
            answered.verified = True
        return refusal

    def _refuse(self, subject: Subject, holdings: Holdings, by: float) -> None:
        """Raise NriRdmaError for a container that is not complete. Write its rdma limits, where that is left to us."""
        _await_end(subject, holdings, by)
        refuse_incomplete(subject, holdings, self._prefix, self._named)
        if subject.resource and not self._was_answered(subject, holdings):
            raise _made_without_us(subject)
        self._limit(subject, holdings)
        self._gate.images.await_check(holdings, _created(subject, holdings), min(IMAGE_WAIT_S, by - time.monotonic()))

    @property
    def contacts(self) -> Contacts:
        """Return what is known of the hooks."""
        with self._lock:
            return Contacts(asked=self._asked, refused=self._refused, last=self._last)

    def _limit(self, subject: Subject, holdings: Holdings) -> None:
        """Write the limits that the OCI runtime was not told of: the container's cgroup exists. Raise NriRdmaError,
        also where the cgroup is not known, since a daemon that started a moment ago was not told of it."""
        path = _cgroups_path(subject, holdings)
        if path:
            self._limiter.limit_created(holdings, subject.container, path, subject.container_id)
        elif self._limiter.has_limits(holdings, subject.container) or self._gate.asks(holdings, subject.container):
            raise NotReadyError(
                ErrorCode.NOT_READY,
                "network is not ready: the daemon does not know yet in which cgroup this container is",
                where=f"{subject.pod}, container {subject.container}",
                hint="nothing to do: the kubelet tries again",
            )

    def _was_answered(self, subject: Subject, holdings: Holdings) -> bool:
        """Return whether this daemon has answered for the creation of the container: then it is known what its pod asks
        for."""
        known = self._known(subject.sandbox_id)
        path = known.answered.get(subject.container, "") if known is not None else ""
        return _answered(subject, holdings) is not None or bool(subject.container_id and subject.container_id in path)

    def _note(self, asked: int, refused: bool) -> None:
        with self._lock:
            is_first = not self._asked
            self._asked += asked
            self._refused += refused
            self._last = time.time()
        try:
            self._seen.touch()
        except OSError as error:  # the next daemon does not know of the guard until it asks again: nobody is worse off
            if is_first:
                log.warning("that the guard has asked is not remembered", extra={"error": str(error)})


def _cgroups_path(subject: Subject, holdings: Holdings) -> str:
    """Return the path that the container's cgroup had in CreateContainer; "" where that is not known."""
    path = holdings.containers.cgroups.get(subject.container, "") if holdings else ""
    return path if subject.container_id and subject.container_id in path else ""


def _created(subject: Subject, holdings: Holdings) -> Created:
    return Created(
        where=f"{subject.pod}, container {subject.container}",
        name=subject.container,
        container_id=subject.container_id,
        cgroups_path=_cgroups_path(subject, holdings),
        pid=subject.pid,
        memlock=subject.memlock,
        indexes=subject.indexes,
        bundle=subject.bundle,
    )


def _await_end(subject: Subject, holdings: Holdings, by: float) -> None:
    """Wait for unfinished attaches, and for rereads of what is attached."""
    for sandbox in holdings.concerning(subject.container, ()):
        settled(sandbox.attach_done, by - time.monotonic())
        looked = sandbox.now.looked_again
        if looked is not None:
            settled(looked, by - time.monotonic())


def refuse_incomplete(subject: Subject, holdings: Holdings, prefix: str, named: Named) -> None:
    """Raise NriRdmaError when the container lacks anything of what its pod asked for; `holdings` are all attachments
    of its sandbox. `named` is called only where a claim of the pod is not attached for the container."""
    where = f"{subject.pod}, container {subject.container}"
    if holdings.own is None and asks_for_devices(subject.annotations, prefix):
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            "this pod asks for RDMA devices and none are attached to its sandbox",
            where=where,
            hint="delete the pod so that it gets a new sandbox",
        )
    records = [_ready_record(sandbox, where) for sandbox in holdings.concerning(subject.container, ())]
    attached = tuple(item for record in records for item in record.attached)
    if subject.pool and not any(_is_share(item, subject) for item in attached):
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            f"this container has shares of pool {subject.pool} and no device is attached for them",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if it stays so delete the pod",
        )
    if subject.cdi_device and not _has(subject.cdi_device, attached, subject):
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            f"this container has the CDI device {subject.cdi_device} and nothing is attached for it",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if it stays so delete the pod",
        )
    _refuse_unattached_claim(subject, attached, named, where)
    lacking = tuple(_lacking(subject, records))
    if lacking:
        raise NotReadyError(
            ErrorCode.NOT_SERVED,
            f"the container was made without {', '.join(lacking)}: {_why(subject, holdings)}",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if it stays so see `nri-rdma status`",
        )


def _made_without_us(subject: Subject) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_SERVED,
        f"this container has the resource {subject.resource}, and the runtime did not ask us for it",
        where=f"{subject.pod}, container {subject.container}",
        hint="nothing to do: the kubelet makes the container again; if it stays so see `nri-rdma status`",
    )


def _is_share(item: AttachedRequest, subject: Subject) -> bool:
    request = item.admitted.request
    return bool(request.shares) and request.pool == subject.pool and request.scope.covers(subject.container)


def _has(cdi_device: str, attached: tuple[AttachedRequest, ...], subject: Subject) -> bool:
    """Return whether anything is attached for that CDI device and this container."""
    requests = [it.admitted.request for it in attached]
    return any(it.cdi_device == cdi_device and it.scope.covers(subject.container) for it in requests)


def _refuse_unattached_claim(subject: Subject, attached: tuple[AttachedRequest, ...], named: Named, where: str) -> None:
    """Raise NotReadyError for a claim of the pod that no container names, and that is not attached for this one. One
    that a container names comes to that container with a guard of its own."""
    lacking = [name for name in subject.claims if not _has(name, attached, subject)]
    if not lacking:
        return
    theirs = named(subject.sandbox_id, subject.pod)
    if theirs is None:
        raise NotReadyError(
            ErrorCode.NOT_READY,
            "network is not ready: the kubelet has not told which containers name the pod's claims",
            where=where,
            hint="nothing to do: the kubelet tries again",
        )
    unnamed = [name for name in lacking if name not in theirs]
    if unnamed:
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            f"the claimed device {unnamed[0]} is the whole pod's, and nothing is attached for it in this container",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if it stays so delete the pod",
        )


def _ready_record(sandbox: Attachment, where: str) -> SandboxRecord:
    """Return what is attached; raise NotReadyError where that is not, or no longer, so."""
    if sandbox.state in {Phase.RETURNING, Phase.GONE}:
        raise returning(sandbox.pod)
    looked, record = sandbox.now.looked_again, sandbox.now.record
    if sandbox.state is not Phase.ATTACHED or record is None:
        words = "the attach of this pod still runs"
    elif looked is not None and (not looked.done() or looked.cancelled() or looked.exception() is not None):
        words = "the devices of this pod are looked at again"
    else:
        return record
    raise NotReadyError(
        ErrorCode.NOT_READY,
        f"network is not ready: {words}",
        where=where,
        hint="nothing to do: the kubelet tries again",
    )


def _lacking(subject: Subject, records: list[SandboxRecord]) -> Iterator[str]:
    """Yield what the container would be given and does not have, as text for people."""
    attached = tuple(item for record in records for item in record.attached)
    rdma_cm = next((record.rdma_cm for record in records if record.rdma_cm is not None), None)
    gids = tuple(record.gids for record in records)
    wanted = inject(attached, rdma_cm, subject.container, subject.env, {}, None, gids)
    for node in wanted.char_devices:
        found = subject.devices.get(node.path)
        if found is None:
            yield node.path
        elif found != (node.major, node.minor):
            yield f"{node.path} as {node.major}:{node.minor} (it is {found[0]}:{found[1]})"
    for name, _ in wanted.env:
        yield name


def _why(subject: Subject, holdings: Holdings) -> str:
    """Return, as text for people, whether we were asked: if so, the cause is elsewhere."""
    if _answered(subject, holdings) is not None:
        return "our answer came too late for the runtime, or somebody changed it since"
    return "the runtime did not ask us for it"


def _answered(subject: Subject, holdings: Holdings) -> Unstarted | None:
    """Return our remembered answer for this container, not for another of its name: the id is in a container's cgroups
    path. The oldest attachment remembers it. None as well for answers of an earlier daemon."""
    if not holdings or not subject.container_id:
        return None
    known = holdings.containers
    path = known.cgroups.get(subject.container, "")
    return known.unstarted.get(subject.container) if subject.container_id in path else None


def _age_of(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0  # no hook has asked since the boot
