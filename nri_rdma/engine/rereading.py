"""New readings of specs and hardware for a container whose RDMA device nodes are not explained by the last readings.

Law: a container is created only after everything was read that existed at its first attempt. A later attempt waits for
the readings that its first attempt began, so that slow readings delay the container, but cannot block it for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import CancelledError, Future

from nri_rdma.attach.containers import KEPT_CONTAINERS
from nri_rdma.cdi.index import NodesAt
from nri_rdma.engine.sandbox import Begun, Sandboxes
from nri_rdma.engine.specs import Read
from nri_rdma.errors import ErrorCode, NotReadyError, NriRdmaError
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import all_settled


class Rereading:
    """Begins readings for containers and waits for them, once for each set of unexplained nodes. Thread-safe, if a
    container has one caller at a time."""

    def __init__(self, reads: Iterable[Read], sandboxes: Sandboxes) -> None:
        """`reads`: functions that each start a reading (specs, node). Empty: the last readings are always complete."""
        self.reads = tuple(reads)
        self._sandboxes = sandboxes

    def await_read(self, pod: Pod, container: str, nodes: NodesAt, until: float) -> None:
        """Wait for readings that began after the container's first attempt with these device nodes. Raise NotReadyError
        if they are not done by `until` (seconds of `time.monotonic`), or if a reading failed; after a failure the next
        attempt begins new readings."""
        known = self._sandboxes.get(pod.sandbox_id)
        begun = known.readings.pop(container, None) if known is not None else None
        if begun is None or not nodes <= begun.nodes:
            begun = Begun(nodes=nodes, readings=tuple(read() for read in self.reads))
        if not all_settled(begun.readings, until):
            readings = self._sandboxes.take(pod.sandbox_id).readings
            if len(readings) < KEPT_CONTAINERS:
                readings[container] = begun
            raise _not_yet(pod, container, nodes)
        for reading in begun.readings:
            error = _error_of(reading)
            if error is not None:
                raise _failed(pod, container, nodes, error) from error


def _error_of(reading: Future[None]) -> BaseException | None:
    return CancelledError("nri-rdma is ending") if reading.cancelled() else reading.exception()


def _not_yet(pod: Pod, container: str, nodes: NodesAt) -> NotReadyError:
    return NotReadyError(
        ErrorCode.NOT_READY,
        f"network is not ready: specs and devices are read again for {_words(container, nodes)}",
        where=str(pod),
        hint="nothing to do: the kubelet asks again",
    )


def _failed(pod: Pod, container: str, nodes: NodesAt, error: BaseException) -> NotReadyError:
    return NotReadyError(
        error.code if isinstance(error, NriRdmaError) else ErrorCode.NOT_READY,
        f"reading specs and devices again failed; it is needed for {_words(container, nodes)}",
        where=str(pod),
        hint="see `nri-rdma inventory` and `nri-rdma cdi list`; the next reading begins when the kubelet asks again",
        detail=str(error),
    )


def _words(container: str, nodes: NodesAt) -> str:
    """Return the first of a container's unexplained device nodes as text for people, always the same node for the same
    set."""
    path, (major, minor) = min(nodes)
    return f"{path} ({major}:{minor}) of container {container}, whose origin is unknown"
