"""The errors that refuse pods and containers which may not run yet or not any more, and the memory of all refusals.

If a retry helps, the text begins with "network is not ready": then the kubelet retries after about a second instead of
ten or more. The memory is for `status` and for people who look for the reason of a stuck pod, also after the pod is
gone. It has one row per pod, call and error code; the row counts the kubelet's retries.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from nri_rdma.attach.record import refuse_unusable
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.model.pool import Pool
from nri_rdma.text.refusals import bounded, quoted

log = logging.getLogger(__name__)

_ASKS_AGAIN = "nothing to do: the kubelet asks again"
_NEW_SANDBOX = "delete the pod so that it gets a new sandbox"


def not_ready(pod: Pod, why: str, last_error: str = "") -> NotReadyError:
    """Return the error for a container whose pod's devices are not attached yet, or not verified; `why` says which."""
    what = f"network is not ready: {why}"
    return NotReadyError(ErrorCode.NOT_READY, what, where=str(pod), hint=_ASKS_AGAIN, detail=last_error)


def being_attached(pod: Pod, container: str) -> NotReadyError:
    """Return the error for a container as long as the devices of its claims or device-plugin shares are not
    attached."""
    return not_ready(pod, f"the RDMA devices of container {container} are being attached")


def not_decided(pod_name: str) -> NotReadyError:
    """Return the error for a container whose pod started while the daemon was away; a worker selects its devices
    now."""
    what = "network is not ready: this pod started while nri-rdma was away, and its devices are being selected"
    return NotReadyError(ErrorCode.NOT_READY, what, where=pod_name, hint=_ASKS_AGAIN)


def not_attached(pod_name: str) -> NotReadyError:
    """Return the error for a container whose pod asks for devices, but has none and will not get any."""
    what = "this pod asks for RDMA devices and none are attached to its sandbox"
    return NotReadyError(ErrorCode.NOT_ATTACHED, what, where=pod_name, hint=_NEW_SANDBOX)


def failed_late(pod: Pod, why: str) -> NotReadyError:
    """Return the error for a container whose pod's devices could not be attached; the failure came after RunPodSandbox
    was answered. `why` is its reason."""
    what = "the attach failed after the sandbox had started, and was undone"
    return NotReadyError(ErrorCode.ATTACH_FAILED, what, where=str(pod), hint=_NEW_SANDBOX, detail=why)


def lacks_guard(pod: Pod, container: str, resource: str) -> NotReadyError:
    """Return the error for a container that has shares of a resource, but not the guard that the device plugin gave
    with them, because the runtime does not read CDI specs. The guard is an OCI hook that keeps a container from
    starting without its devices."""
    return NotReadyError(
        ErrorCode.GUARD_MISSING,
        f"container {container} has shares of {resource} without the guard that was given with them",
        where=str(pod),
        hint='let the runtime read CDI specs (containerd 1.7: enable_cdi = true), or set guard_hook = "" for shares'
        " without the guard",
    )


def forged_shares(pod: Pod, container: str, key: str) -> NotReadyError:
    """Return the error for a container whose pod has the annotation `key`, which lists device-plugin shares. Only the
    kubelet may set it, and only on containers."""
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        f"the pod of container {container} has the annotation {bounded(key)}, which only the kubelet may give",
        where=str(pod),
        hint="remove it from the pod: ask for shares in resources.limits",
    )


def unknown_shares(pod: Pod, container: str, resource: str) -> NotReadyError:
    """Return the error for a container that has device-plugin shares of a resource that belongs to no pool of this
    node."""
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        f"container {container} has shares of {bounded(resource)}, which is the resource of no pool of this node",
        where=str(pod),
        hint="delete the pod: its shares are older than the configuration; or put the pool back and restart the daemon",
    )


def unknown_share(pod: Pod, container: str, share: str, pool: Pool) -> NotReadyError:
    """Return the error for a container with a device-plugin share (a device id that the kubelet allocated) that its
    pool does not have."""
    return NotReadyError(
        ErrorCode.NOT_ATTACHED,
        f"container {container} has {quoted(share)}, which is no share of {pool.resource}: pool {pool.name} has"
        f" {pool.shares}",
        where=str(pod),
        hint="delete the pod: its shares are older than the configuration, or are not from the kubelet",
    )


def late_attach_failed(pod: Pod, container: str, why: str, *, is_over: bool) -> NotReadyError:
    """Return the error for a container whose devices could not be attached when it was created; `why` is the reason.
    `is_over`: no further attempt is made in this sandbox."""
    return NotReadyError(
        ErrorCode.ATTACH_FAILED,
        "the RDMA devices of this container could not be attached, and what was done was undone",
        where=f"{pod}, container {container}",
        hint=_NEW_SANDBOX if is_over else "nothing to do: it is tried again",
        detail=why,
    )


def returning(pod: Pod) -> NotReadyError:
    """Return the error for a container of a sandbox whose devices are being returned to the host."""
    return NotReadyError(
        ErrorCode.RETURNING,
        "the devices of this sandbox are being returned to the host",
        where=str(pod),
        hint="the pod needs a new sandbox; delete the pod if the kubelet does not make one",
    )


def refuse_unusable_id(pod: Pod) -> None:
    """Raise StateError for a sandbox whose id cannot be a name in the journal."""
    refuse_unusable(pod.sandbox_id)


WINDOW_S = 600.0
"""For how long after its last refusal a row is shown, in seconds."""
KEPT = 256
"""The maximum number of rows. Beyond it the row with the oldest last refusal is forgotten. A row takes about 1 KiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalRow:
    """The refusals of one pod in one call with one error code. `first` and `last` are the times of the first and the
    last refusal, in seconds since the epoch; the other fields describe the last refusal."""

    call: str
    """The call that was refused: RunPodSandbox, CreateContainer or StartContainer, or the step of an OCI hook."""
    pod: str
    uid: str
    sandbox: str
    container: str
    """The container's name; "" if the whole pod was refused."""
    code: str
    error: str
    count: int
    first: float
    last: float


class RefusedLately:
    """The memory of refusals. Thread-safe."""

    def __init__(
        self, clock: Callable[[], float] = time.time, names_holders: Callable[[], bool] = lambda: False
    ) -> None:
        self._clock = clock
        self._names_holders = names_holders
        self._lock = threading.Lock()
        self._rows: OrderedDict[tuple[str, str, str], RefusalRow] = OrderedDict()
        self._by_code: Counter[str] = Counter()

    def by_code(self) -> Mapping[str, int]:
        """Return how many refusals there were since the start, by error code."""
        with self._lock:
            return dict(self._by_code)

    def count(self, error: NriRdmaError) -> None:
        """Count a refusal that the caller logs itself. Unlike `note`, it leaves no row."""
        with self._lock:
            self._by_code[str(error.code)] += 1

    def note(self, call: str, pod: Pod, error: Exception, container: str = "") -> None:
        """Log a refusal and remember it. Do nothing for an error that is no NriRdmaError: it is a bug, which the door
        logs."""
        if not isinstance(error, NriRdmaError):
            return
        facts = {"call": call, "pod": str(pod), "uid": pod.uid, "sandbox": pod.sandbox_id}
        if container:
            facts["container"] = container
        error.is_logged, error.names_holders = True, self._names_holders()
        log.warning("refused", extra={**facts, "code": str(error.code), "error": str(error)})
        now, key = self._clock(), (str(pod), call, str(error.code))
        with self._lock:
            self._by_code[str(error.code)] += 1
            before = self._rows.pop(key, None)
            is_old = before is None or now - before.last > WINDOW_S
            self._rows[key] = RefusalRow(
                call=call,
                pod=str(pod),
                uid=pod.uid,
                sandbox=pod.sandbox_id,
                container=container,
                code=str(error.code),
                error=str(error),
                count=1 if before is None or is_old else before.count + 1,
                first=now if before is None or is_old else before.first,
                last=now,
            )
            if len(self._rows) > KEPT:
                self._rows.popitem(last=False)

    def take_up(self, rows: Iterable[RefusalRow]) -> None:
        """Remember rows of an earlier daemon, oldest first. They do not count as refusals since the start."""
        with self._lock:
            for row in rows:
                self._rows.pop(key := (row.pod, row.call, row.code), None)
                self._rows[key] = row
            while len(self._rows) > KEPT:
                self._rows.popitem(last=False)

    def rows(self) -> tuple[RefusalRow, ...]:
        """Return the rows with a refusal within the last WINDOW_S seconds, the latest first."""
        since = self._clock() - WINDOW_S
        with self._lock:
            return tuple(row for row in reversed(self._rows.values()) if row.last >= since)
