"""The guard's answer: whether a container that was created, and does not run yet, has the devices that its pod asked
for.

The OCI hook (hooks/nri-rdma-hook) asks for this answer. It is a hook because it runs even if the daemon does not. Law:
a container is complete if all attachments of its sandbox that concern it are attached, and its OCI configuration has
the device nodes, with the current numbers, and the environment variables that the engine would give it now. That the
engine answered CreateContainer for it earlier is not enough. For a container with the guard resource such an answer is
required in addition, because its hook may not see annotations and does not see claims that no container names.
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
"""File in the state directory. Its modification time is the time of the last question of a hook, to this daemon or an
earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The container that a hook asks about, as the hook sees it."""

    sandbox_id: str
    pod: str
    """The pod, as NAMESPACE/NAME."""
    container: str
    container_id: str
    annotations: Mapping[str, str]
    devices: Mapping[str, DeviceNumbers]
    """The device nodes in its OCI configuration, by path."""
    env: frozenset[str]
    """The names of the environment variables in its OCI configuration."""
    pool: str = ""
    """The pool of whose device-plugin resource it has units (shares), if they brought the hook."""
    cdi_device: str = ""
    """The CDI device whose spec brought the hook. It belongs to a claim of nri-rdma's DRA driver, or to another driver
    whose spec has nri-rdma's annotations."""
    claims: tuple[str, ...] = ()
    """The CDI devices of all claims of nri-rdma's DRA driver that its pod has."""
    resource: str = ""
    """The guard resource, which a container requests only to get this hook; "" if the container does not have it."""
    pid: int = 0
    """Its first process; 0 if the hook does not report it."""
    memlock: int | None = None
    """The RLIMIT_MEMLOCK of its program, in bytes; None if its OCI configuration does not set it."""
    indexes: Mapping[str, str] = field(default_factory=dict)
    """Its environment variables that choose an entry of the GID table, with their values."""
    bundle: str = ""
    """The folder of its OCI configuration; "" if the hook does not report it."""


Named: TypeAlias = Callable[[str, str], Collection[str] | None]
"""Returns the CDI devices that the containers of a pod name; None if the kubelet does not report them. The arguments
are the sandbox id and the pod as NAMESPACE/NAME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contacts:
    """The calls of guard hooks since the daemon's start."""

    asked: int = 0
    """The number of containers about which an OCI hook of the guard asked this daemon."""
    refused: int = 0
    """The number of calls that ended in a refusal."""
    last: float = 0.0
    """The time of the last call, in seconds since the epoch; 0: none since the boot. Calls to an earlier daemon
    count."""


class Guard:
    """Answers the guard's OCI hooks, which keep a container from starting without its devices. Thread-safe."""

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
        """`sandboxes` returns the attachments of a sandbox id, `known` the engine's other memory about it."""
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
        """Return the error text with which the hook refuses the container; "" if the container is complete.

        Write the container's rdma limits if the runtime leaves them to the daemon. Wait until `by` (seconds of
        `time.monotonic`) for an unfinished attach or check; other pods of the node do not wait meanwhile.
        """
        return self._refusal("verify", subject, lambda holdings: self._refuse(subject, holdings, by), asked=1)

    def is_to_be_proven(self, subject: Subject) -> bool:
        """Return whether RDMA has to be tested in the container before its program runs, and was not tested yet. Then
        the OCI hook has to call `prove`."""
        holdings = self._sandboxes(subject.sandbox_id)
        return bool(holdings) and self._gate.is_due(holdings, subject.container, subject.container_id)

    def prove(self, subject: Subject, within_s: float) -> str:
        """Test RDMA in the container within `within_s` seconds, if a request says `prove`. Return the error text with
        which the OCI hook refuses the container; "" if it has all its devices and RDMA works in it."""

        def refuse(holdings: Holdings) -> None:
            self._refuse(subject, holdings, 0.0)
            if holdings and self._gate.is_due(holdings, subject.container, subject.container_id):
                self._gate.prove(holdings, _created(subject, holdings), within_s)

        return self._refusal("createRuntime", subject, refuse, asked=0)  # `verify` counted the container

    def _refusal(self, name: str, subject: Subject, refuse: Callable[[Holdings], None], *, asked: int) -> str:
        """Call `refuse`, and return the text of the error that it raises; "" if it raises none. The call is recorded as
        a span called `name`. `asked` (0 or 1) is added to the count of containers about which OCI hooks asked."""
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
                    self._gate.refused.count(error)
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
        """Raise NriRdmaError if the container lacks anything that its pod asked for; wait until `by` (seconds of
        `time.monotonic`) for unfinished attaches. Write the container's rdma limits if the runtime leaves them to the
        daemon, and check its image."""
        _await_end(subject, holdings, by)
        refuse_incomplete(subject, holdings, self._prefix, self._named)
        if subject.resource and not self._was_answered(subject, holdings):
            raise _made_without_us(subject)
        self._limit(subject, holdings)
        self._gate.images.await_check(holdings, _created(subject, holdings), min(IMAGE_WAIT_S, by - time.monotonic()))

    @property
    def contacts(self) -> Contacts:
        """The number of the hooks' calls and the time of the last one."""
        with self._lock:
            return Contacts(asked=self._asked, refused=self._refused, last=self._last)

    def _limit(self, subject: Subject, holdings: Holdings) -> None:
        """Write the rdma limits that were not given to the OCI runtime. Raise LimitsError if this fails, and
        NotReadyError if the container's cgroup is not known: the runtime reported it to an earlier daemon only."""
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
        """Return whether this daemon answered CreateContainer for the container. Only then did it compare the container
        with everything that the pod asks for."""
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
        except OSError as error:  # go on: the next daemon only shows the guard as unused until a hook asks again
            if is_first:
                log.warning("the time of the guard's last call cannot be written", extra={"error": str(error)})


def _cgroups_path(subject: Subject, holdings: Holdings) -> str:
    """Return the path of the container's cgroup, as CreateContainer had it; "" if it is not known."""
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
    """Wait until `by` (seconds of `time.monotonic`) for the container's unfinished attaches, and for the unfinished
    checks of its attached devices."""
    for sandbox in holdings.concerning(subject.container, ()):
        settled(sandbox.attach_done, by - time.monotonic())
        looked = sandbox.now.looked_again
        if looked is not None:
            settled(looked, by - time.monotonic())


def refuse_incomplete(subject: Subject, holdings: Holdings, prefix: str, named: Named) -> None:
    """Raise NriRdmaError if the container lacks anything that its pod asked for. `holdings` are all attachments of its
    sandbox. `named` returns the CDI devices that the pod's containers name; it asks the kubelet, and is called only if
    a claim of the pod is not attached for this container."""
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
            hint="nothing to do: the kubelet makes the container again; if this repeats, delete the pod",
        )
    if subject.cdi_device and not _has(subject.cdi_device, attached, subject):
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            f"this container has the CDI device {subject.cdi_device} and nothing is attached for it",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if this repeats, delete the pod",
        )
    _refuse_unattached_claim(subject, attached, named, where)
    lacking = tuple(_lacking(subject, records))
    if lacking:
        raise NotReadyError(
            ErrorCode.NOT_SERVED,
            f"the container was made without {', '.join(lacking)}: {_why(subject, holdings)}",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if this repeats, see `nri-rdma status`",
        )


def _made_without_us(subject: Subject) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_SERVED,
        f"this container has the resource {subject.resource}, and the runtime did not ask nri-rdma about its creation",
        where=f"{subject.pod}, container {subject.container}",
        hint="nothing to do: the kubelet makes the container again; if this repeats, see `nri-rdma status`",
    )


def _is_share(item: AttachedRequest, subject: Subject) -> bool:
    request = item.admitted.request
    return bool(request.shares) and request.pool == subject.pool and request.scope.covers(subject.container)


def _has(cdi_device: str, attached: tuple[AttachedRequest, ...], subject: Subject) -> bool:
    """Return whether devices are attached for this CDI device and the container."""
    requests = [it.admitted.request for it in attached]
    return any(it.cdi_device == cdi_device and it.scope.covers(subject.container) for it in requests)


def _refuse_unattached_claim(subject: Subject, attached: tuple[AttachedRequest, ...], named: Named, where: str) -> None:
    """Raise NotReadyError if a claim that no container of the pod names, and that is therefore for all containers, is
    not attached for this one; or if the kubelet has not reported which claims are named. A claim that a container names
    is checked by the OCI hook that the claim's CDI device brings."""
    lacking = [name for name in subject.claims if not _has(name, attached, subject)]
    if not lacking:
        return
    theirs = named(subject.sandbox_id, subject.pod)
    if theirs is None:
        raise NotReadyError(
            ErrorCode.NOT_READY,
            "network is not ready: the kubelet has not reported which containers name the pod's claims",
            where=where,
            hint="nothing to do: the kubelet tries again",
        )
    unnamed = [name for name in lacking if name not in theirs]
    if unnamed:
        raise NotReadyError(
            ErrorCode.NOT_ATTACHED,
            f"the claimed device {unnamed[0]} is the whole pod's, and nothing is attached for it in this container",
            where=where,
            hint="nothing to do: the kubelet makes the container again; if this repeats, delete the pod",
        )


def _ready_record(sandbox: Attachment, where: str) -> SandboxRecord:
    """Return the record of an attachment. Raise NotReadyError if its devices are not attached yet, are being returned,
    or are being checked again."""
    if sandbox.state in {Phase.RETURNING, Phase.GONE}:
        raise returning(sandbox.pod)
    looked, record = sandbox.now.looked_again, sandbox.now.record
    if sandbox.state is not Phase.ATTACHED or record is None:
        words = "the attach of this pod still runs"
    elif looked is not None and (not looked.done() or looked.cancelled() or looked.exception() is not None):
        words = "the devices of this pod are being checked again"
    else:
        return record
    raise NotReadyError(
        ErrorCode.NOT_READY,
        f"network is not ready: {words}",
        where=where,
        hint="nothing to do: the kubelet tries again",
    )


def _lacking(subject: Subject, records: list[SandboxRecord]) -> Iterator[str]:
    """Yield, as text for people, the device nodes and variables that the engine would give to the container and that
    the container does not have."""
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
    """Return, as text for people, why the container lacks something: the runtime did not ask the daemon, or did not use
    its answer."""
    if _answered(subject, holdings) is not None:
        return "nri-rdma's answer came too late for the runtime, or somebody changed it since"
    return "the runtime did not ask nri-rdma about it"


def _answered(subject: Subject, holdings: Holdings) -> Unstarted | None:
    """Return this daemon's CreateContainer answer for the container; None if there was none. An answer for another
    container of the same name does not count: the cgroups path of the answer has to contain this container's id."""
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
