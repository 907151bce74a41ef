"""The CDI specs and the hardware according to the last readings, and the waits for new readings.

Law: the runtime's calls are answered from memory. A worker reads the specs and replaces the snapshot as a whole.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from nri_rdma.cdi.index import Index
from nri_rdma.cdi.registry import Registry
from nri_rdma.decide.gpus import GpuNames
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.model.device import CharKind, Node
from nri_rdma.model.pod import Pod
from nri_rdma.tasks.waiting import has_failed, settled

Read: TypeAlias = Callable[[], Future[None]]
"""Starts a reading in a worker when called. The reading is done when its result is known."""

_KEPT_NAMES = 4096
"""The maximum number of remembered CDI devices without a spec; more than the pods of any node have."""
_FRESH_S = 1.0
"""How long a name that a reading did not find is not looked for again, in seconds. The kubelet's attempts are as far
apart."""
_UVERBS_MAJOR = 231
"""The major number of the first 32 uverbs devices (IB_UVERBS_MAJOR in the kernel's
drivers/infiniband/core/uverbs_main.c). It counts as RDMA even before a first device was found on the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The CDI specs and the node, as last read."""

    node: Node
    registry: Registry
    index: Index
    gpu_names: GpuNames
    """The GPUs of the node."""
    rdma_majors: frozenset[int]
    """The major numbers that the node's RDMA devices have or had. Earlier numbers are kept, because devices that moved
    into pods are not in the node's list."""
    majors: frozenset[int] | None
    """The major numbers of RDMA devices (`rdma_majors`); None until the specs are read for the first time."""


class SpecCache:
    """The last snapshot, as `now`, and the waits for newer ones. Thread-safe."""

    def __init__(
        self,
        *,
        node: Callable[[], Node],
        registry: Callable[[], Registry],
        prefix: str,
        reread: Read | None = None,
        is_ready: bool = True,
    ) -> None:
        """`node` and `registry` return the last readings and never block. `reread` has a worker read the specs; its
        future is done after the worker has called `read_again`. `reread` None: the last reading is always complete.
        `is_ready` False: the specs count as unread until `set_ready`."""
        self._node = node
        self._registry = registry
        self._prefix = prefix
        self._reread = reread
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._readings: OrderedDict[str, tuple[Future[None], float]] = OrderedDict()
        """The reading that was begun for each name without a spec, with the time at which it was begun."""
        self._expected: Mapping[str, str] = {}
        """The CDI devices whose specs were just written, each with the allocation for which that was done."""
        self.now = self._snapshot(registry(), frozenset({_UVERBS_MAJOR}), None, is_ready=is_ready)
        if is_ready:
            self._ready.set()

    @property
    def is_ready(self) -> bool:
        """Whether the specs were read, including the expected ones (`expect`)."""
        return self._ready.is_set() and not self._expected

    def traces(self, names: Iterable[str]) -> frozenset[str]:
        """Return the `traceparent` of each call that prepared one of these CDI devices."""
        return frozenset(map(self.now.index.trace_of, names)) - {""}

    def read_again(self) -> None:
        """Make a new snapshot, after the specs or the node have changed. Slow, because it goes through all specs: not
        for a thread that answers the runtime."""
        with self._lock:
            self._take(is_ready=self._ready.is_set())

    def set_ready(self) -> None:
        """Mark the specs as read, and wake the threads that wait for them."""
        with self._lock:
            self._take(is_ready=True)
            self._ready.set()

    def await_ready(self, pod: Pod | None, deadline: float) -> None:
        """Wait until the specs are read, including the expected ones (`expect`). Raise NotReadyError at `deadline`
        (seconds of `time.monotonic`)."""
        if not self._ready.is_set() and not self._ready.wait(max(0.0, deadline - time.monotonic())):
            raise specs_not_read(pod)
        expected = self._expected
        if expected:
            reading = self.reading_for([*expected])
            if not settled(reading, deadline - time.monotonic()) or has_failed(reading):
                raise specs_not_read(pod)
            with self._lock:  # a device that is still in no spec is not waited for again
                self._expected = dict(self._expected.items() - expected.items())

    def expect(self, names: Iterable[str], allocation: str) -> None:
        """Expect these CDI devices, whose specs were just written for a claim's allocation: pods that come now wait
        until these specs are read, and not those of an earlier allocation, which have the same names. They are read
        when the change of the files is noticed, or for the next pod."""
        with self._lock:
            expected = dict.fromkeys(names, allocation)
            for name in expected:
                self._readings.pop(name, None)  # it may have begun before the specs were written
            self._expected = self._still({**self._expected, **expected})

    def unread(self, names: Iterable[str], now: Snapshot | None = None) -> list[str]:
        """Return those of these CDI devices that are in no spec of the snapshot `now` (None: of the last one); empty if
        the specs are never read again."""
        index = (now or self.now).index
        return [name for name in names if not index.has_read(name)] if self._reread is not None else []

    def reading_for(self, names: list[str]) -> Future[None]:
        """Return a reading for these CDI devices, which were in no spec (`unread`). A reading that was begun for all of
        them is shared until it is done, and at least for _FRESH_S."""
        assert self._reread is not None  # otherwise `unread` returns nothing
        now = time.monotonic()
        known = [self._readings.get(name) for name in names]
        fresh = [it[0] for it in known if it is not None and not (it[0].done() and now - it[1] > _FRESH_S)]
        if len(fresh) == len(names):
            return fresh[-1]  # not looked up again: `expect` may drop it meanwhile
        reading = self._reread()
        for name in names:
            self._readings[name] = (reading, now)
        while len(self._readings) > _KEPT_NAMES:
            self._readings.popitem(last=False)
        return reading

    def _take(self, *, is_ready: bool) -> None:
        """Make a snapshot from the last readings. The caller holds the lock."""
        self.now = self._snapshot(self._registry(), self.now.rdma_majors, self.now.index, is_ready=is_ready)
        self._expected = self._still(self._expected)

    def _still(self, expected: Mapping[str, str]) -> Mapping[str, str]:
        """Return those of the expected CDI devices that no spec has for the expected allocation; empty if the specs
        are never read again."""
        index = self.now.index
        return {it: to for it, to in expected.items() if self._reread is not None and index.allocation_of(it) != to}

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
    """Return the error for a pod or container that has to wait until the specs are read."""
    return NotReadyError(
        ErrorCode.NOT_READY,
        "network is not ready: the CDI specs of the node are still being read",
        where=str(pod or ""),
        hint="nothing to do: the kubelet asks again",
    )
