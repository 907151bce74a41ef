"""The programs other than nri-rdma that give RDMA devices to containers, as seen in CDI specs and in the kubelet's
allocations. The engine uses them to explain a container's devices."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from nri_rdma.attach.timers import start_timer
from nri_rdma.cdi.registry import Registry
from nri_rdma.config.settings import Settings
from nri_rdma.engine.node_cache import NodeCache
from nri_rdma.engine.specs import Read, SpecCache
from nri_rdma.errors import ErrorCode, KubeletError
from nri_rdma.host.kubelet.checkpoint import read_checkpoint
from nri_rdma.model.allocation import PodAllocation
from nri_rdma.model.pool import PoolDoor
from nri_rdma.tasks.listeners import Listeners
from nri_rdma.tasks.waiting import has_failed
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.kubelet_checkpoint import FILE as CHECKPOINT_FILE

if TYPE_CHECKING:
    from nri_rdma.host.cdi.watch import CdiRegistry
    from nri_rdma.host.kubelet.door import KubeletDoor

log = logging.getLogger(__name__)

_NO_SPECS = Registry(devices={})
UNWATCHED_S = 5.0
"""Pause in seconds between two readings of the CDI directories while the kernel cannot watch them, because no inotify
instance is left."""


class Sources:
    """The CDI specs and the kubelet, which say where a container's RDMA devices come from if nri-rdma did not give
    them.

    The creator closes it. A worker opens it, because importing YAML and grpc would delay the first pod. Until it is
    open, containers with RDMA devices from other drivers wait.
    """

    def __init__(
        self,
        settings: Settings,
        node: NodeCache,
        workers: Workers,
        listeners: Listeners,
        readers: Workers | None = None,
    ) -> None:
        """`listeners` report changes of CDI specs, and `workers` read the specs. `readers` rescan the node for a
        waiting container, so that it does not wait for attaches; None: `workers` do."""
        self._settings = settings
        serves_claims = any(pool.door is PoolDoor.CLAIMS for pool in settings.pools)
        self._checkpoint = str(settings.kubelet_plugins_dir.parent / CHECKPOINT_FILE) if serves_claims else ""
        self._workers = workers
        self._listeners = listeners
        self._specs: CdiRegistry | None = None
        self._kubelet: KubeletDoor | None = None
        self._opening: Future[None] | None = None
        self._queue_lock = threading.Lock()
        self._watch_lock = threading.Lock()
        self._queued: Future[None] | None = None
        self._unwatched = _NO_SPECS
        self._cancel: Callable[[], None] = lambda: None
        self._is_closed = False
        self.specs = SpecCache(
            node=lambda: node.current,
            registry=self._registry,
            prefix=settings.annotation_prefix,
            reread=self.reread,
            is_ready=False,
        )
        self.rereads: tuple[Read, ...] = (self.reread, lambda: node.refresh_in(readers or workers))
        """Functions that start each scan which may explain a container's devices: one of the CDI specs, one of the
        node."""
        node.on_read.append(self.specs.read_again)

    def open_later(self) -> None:
        """Have a worker read the CDI specs, watch them for changes, and connect to the kubelet if the node has one. If
        that fails, it is done again every UNWATCHED_S seconds.

        Calling it twice is allowed, because the runtime may connect more than once.
        """
        if self._opening is None or has_failed(self._opening):
            self._opening = self._workers.submit("specs", self._open)
            self._opening.add_done_callback(self._opened)

    def reread(self) -> Future[None]:
        """Have a worker read the CDI specs again, and return a future that is done afterwards. If a reading is already
        queued, return its future. A reading comes before queued attaches, because a container that is about to start
        may wait for it."""
        with self._queue_lock:
            if self._queued is None:
                self._queued = self._workers.submit("specs", self._read_now, urgent=True)
            return self._queued

    def changes_were_lost(self) -> None:
        """Have a worker read the CDI specs again, because reports of changes were lost. Does nothing before the specs
        were first read."""
        if self._specs is not None:
            self._reread_later()

    @property
    def is_there(self) -> bool:
        """Return whether the node has a kubelet."""
        return self._kubelet.is_there if self._kubelet is not None else self._settings.kubelet_socket.exists()

    @property
    def tells(self) -> bool:
        """Return whether the kubelet has ever answered a query about its allocations."""
        return self._kubelet is not None and self._kubelet.tells

    def of_pod(self, namespace: str, name: str) -> PodAllocation | None:
        """Return the kubelet's allocation for the pod; None if it does not know the pod, or if there is no kubelet.
        Raises KubeletError."""
        if self._kubelet is None:
            what = f"the kubelet cannot be asked at {self._settings.kubelet_socket}: it is not connected yet"
            hint = "nothing to do: the next attempt asks again"
            raise KubeletError(ErrorCode.KUBELET_UNREACHABLE, what, where=f"pod {namespace}/{name}", hint=hint)
        return self._kubelet.of_pod(namespace, name)

    def checkpoint(self) -> bytes:
        """Return the content of the kubelet's checkpoint of claims; b"" if there is none, or if no pool serves
        claims."""
        return read_checkpoint(self._checkpoint) if self._checkpoint else b""

    def close(self) -> None:
        """Stop watching the CDI specs, and disconnect from the kubelet. Call it after the workers are closed; calling
        it twice is allowed."""
        self._is_closed = True
        self._cancel()
        if self._specs is not None:
            self._specs.close()
        if self._kubelet is not None:
            self._kubelet.close()

    def _open(self) -> None:
        from nri_rdma.host.kubelet.door import KubeletDoor

        self._watch()
        self._kubelet = KubeletDoor(self._settings.kubelet_socket, self._workers, budget_s=self._settings.kubelet_wait)
        self._kubelet.begin()
        self.specs.set_ready()
        log.info("CDI specs were read", extra={"devices": len(self._registry().devices)})

    def _opened(self, done: Future[None]) -> None:
        _log_failure(done)
        if has_failed(done):
            self._try_later()

    def _try_later(self) -> None:
        """Open or read the CDI specs again in UNWATCHED_S seconds."""
        self._cancel()
        if not self._is_closed:
            self._cancel = start_timer(UNWATCHED_S, self._try_again)

    def _try_again(self) -> None:
        if self._opening is not None and has_failed(self._opening):
            self.open_later()
        else:
            self._reread_later()

    def _watch(self) -> None:
        """Read the CDI specs, and watch them for changes. If the kernel cannot watch them, or there is no descriptor or
        memory to read them, read them every UNWATCHED_S seconds until it can."""
        with self._watch_lock:
            try:
                if self._specs is not None:  # a container that waited for a spec has opened it already
                    self._specs.refresh()
                else:
                    self._watch_first()
            except OSError:
                self._try_later()
                raise
            if self._specs is None or self._specs.unwatched:
                self._try_later()

    def _watch_first(self) -> None:
        from nri_rdma.host.cdi.folder import read_registry
        from nri_rdma.host.cdi.watch import CdiRegistry

        try:
            self._specs = CdiRegistry(
                self._settings.cdi_dirs,
                lambda _registry: self.specs.read_again(),
                listeners=self._listeners,
                read_later=self._reread_later,
            )
        except OSError as error:
            self._unwatched = read_registry(self._settings.cdi_dirs)
            log.warning("CDI specs are read now and then: the kernel does not watch them", extra={"error": str(error)})

    def _reread_later(self) -> None:
        self.reread().add_done_callback(_log_failure)

    def _read_now(self) -> None:
        with self._queue_lock:
            self._queued = None
        was_watched = self._specs is not None
        self._watch()
        if not was_watched:  # nobody has told of this reading
            self.specs.read_again()

    def _registry(self) -> Registry:
        return self._specs.current if self._specs is not None else self._unwatched


def _log_failure(done: Future[None]) -> None:
    """Log why the CDI specs were not read. Until they are, containers with RDMA devices from other drivers are
    refused."""
    error = None if done.cancelled() else done.exception()
    if error is not None:
        log.error("the CDI specs were not read", exc_info=error)
