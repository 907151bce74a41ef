"""The CDI specs and the hardware as last read, and who waits for them.

Law: a handler is answered from memory. A worker reads the specs; it replaces the snapshot as a whole.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.registry import Registry
from nri_rdma.decide.gpus import GpuNames
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import CharKind, Node
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import settled

Read: TypeAlias = Callable[[], Future[None]]
"""Starts a reading in a worker when called. The reading is done when its result is known."""

_KEPT_NAMES = 4096
"""Names of CDI devices that no spec had are remembered up to this number, which is more than the pods of any node
have."""
_FRESH_S = 1.0
"""How long a name that a reading did not find counts as unknown; then the specs are read again. The kubelet's attempts
are as far apart."""
_UVERBS_MAJOR = 231
"""The kernel's number for the first 32 devices (IB_UVERBS_MAJOR in its drivers/infiniband/core/uverbs_main.c): a node
whose first one has just come is not known to have any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The CDI specs and the node, as last read."""

    node: Node
    registry: Registry
    index: Index
    gpu_names: GpuNames
    """The GPUs of the node."""
    rdma_majors: frozenset[int]
    """The major numbers that RDMA devices of the node have or had: devices that moved to pods are not in the node's
    list."""
    majors: frozenset[int] | None
    """The same; None as long as no specs were read."""


class SpecCache:
    """Safe for use by several threads. `now` is the last snapshot."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        registry: Callable[[], Registry],
        prefix: str,
        reread: Read | None = None,
        is_ready: bool = True,
    ) -> None:
        """`node` and `registry` return the last reading and never block. `reread` has a worker read the specs again; it
        is done when `read_again` was called afterwards (None: the last reading is complete). A cache that is not ready
        knows no specs until `set_ready`."""
        self._node = node
        self._registry = registry
        self._prefix = prefix
        self._reread = reread
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._readings: OrderedDict[str, tuple[Future[None], float]] = OrderedDict()
        """Readings for names that no spec had, with the time of each request."""
        self._expected: frozenset[str] = frozenset()
        self.now = self._snapshot(registry(), frozenset({_UVERBS_MAJOR}), None, is_ready=is_ready)
        if is_ready:
            self._ready.set()

    @property
    def is_ready(self) -> bool:
        """Return whether the specs were read, with those that are expected."""
        return self._ready.is_set() and not self._expected

    def traces(self, names: Iterable[str]) -> frozenset[str]:
        """Return the `traceparent` of each call that prepared one of these CDI devices."""
        return frozenset(map(self.now.index.trace_of, names)) - {""}

    def read_again(self) -> None:
        """Handle changed specs or a changed node. Not for a handler thread: it goes through every spec."""
        with self._lock:
            self._take(is_ready=self._ready.is_set())

    def set_ready(self) -> None:
        """Mark the specs as read, and wake those who wait for them."""
        with self._lock:
            self._take(is_ready=True)
            self._ready.set()

    def await_ready(self, pod: Pod | None, deadline: float) -> None:
        """Wait until the specs are read, with those that are expected, or until `deadline` (seconds of
        `time.monotonic`): then raise NotReadyError."""
        if not self._ready.is_set() and not self._ready.wait(max(0.0, deadline - time.monotonic())):
            raise specs_not_read(pod)
        expected = self._expected
        if expected:
            if not settled(self.reading_for([*expected]), deadline - time.monotonic()):
                raise specs_not_read(pod)
            with self._lock:
                self._expected -= expected  # what is not among the specs by now is expected no longer

    def expect(self, names: Iterable[str]) -> None:
        """Have pods that come wait until the specs of these CDI devices are read, which were written before. They are
        read as soon as the change is noticed, or for the next pod."""
        with self._lock:
            self._expected |= frozenset(self.unread(names))

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return those of these CDI devices that no spec had, as long as reading again may find them."""
        return [name for name in names if not self.now.index.has_read(name)] if self._reread is not None else []

    def reading_for(self, names: list[str]) -> Future[None]:
        """Return a reading that began after these `unread` names were requested, or at most a moment before."""
        assert self._reread is not None  # otherwise none is unread
        now = time.monotonic()
        known = [self._readings.get(name) for name in names]
        if any(it is None or (it[0].done() and now - it[1] > _FRESH_S) for it in known):
            reading = (self._reread(), now)
            for name in names:
                self._readings[name] = reading
            while len(self._readings) > _KEPT_NAMES:
                self._readings.popitem(last=False)
        return self._readings[names[-1]][0]

    def _take(self, *, is_ready: bool) -> None:
        """Take the last reading. With the lock."""
        self.now = self._snapshot(self._registry(), self.now.rdma_majors, self.now.index, is_ready=is_ready)
        self._expected = frozenset(self.unread(self._expected))

    def _snapshot(
        self, registry: Registry, majors: frozenset[int], before: Index | None, *, is_ready: bool
    ) -> Snapshot:
        node = self._node()
        index = Index(registry, node, self._prefix, before)
        majors |= {
            char.major for device in node.devices for char in device.char_devices if char.kind is CharKind.UVERBS
        }
        return Snapshot(
            node=node,
            registry=registry,
            index=index,
            gpu_names=GpuNames.of(node.gpus),
            rdma_majors=majors,
            majors=majors if is_ready else None,
        )


def specs_not_read(pod: Pod | None) -> NotReadyError:
    """Return the error that refuses what needs specs which are still being read."""
    return NotReadyError(
        ErrorCode.NOT_READY,
        "network is not ready: the CDI specs of the node are still being read",
        where=str(pod or ""),
        hint="nothing to do: the kubelet asks again",
    )
