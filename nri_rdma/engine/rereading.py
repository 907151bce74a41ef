"""Readings of specs and hardware that a container waits for, because nothing known explains its RDMA nodes.

Law: whoever is let through has had everything read that there was when it first asked; and a container that asks again
gets the readings that were begun for it, so that it comes to an end however slow they are.
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
    """Safe for use by several threads, of which one asks for a container."""

    def __init__(self, reads: Iterable[Read], sandboxes: Sandboxes) -> None:
        """`reads` start every possible reading; none: what is known is complete."""
        self.reads = tuple(reads)
        self._sandboxes = sandboxes

    def await_read(self, pod: Pod, container: str, nodes: NodesAt, until: float) -> None:
        """Wait until `until` for readings that began after the container first asked with these nodes. Raise
        NotReadyError where they are not done by then, or one has failed: the next attempt begins new ones."""
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
        f"a reading of specs or devices failed that was begun for {_words(container, nodes)}",
        where=str(pod),
        hint="see `nri-rdma inventory` and `nri-rdma cdi list`; it is read anew when the kubelet asks again",
        detail=str(error),
    )


def _words(container: str, nodes: NodesAt) -> str:
    """Return text that names one node only, and always the same one for the same set."""
    path, (major, minor) = min(nodes)
    return f"{path} ({major}:{minor}) of container {container}, which nothing known explains"
