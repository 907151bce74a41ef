"""The device plugins of a node: one server for each pool that pods request as an extended resource.

When the kubelet starts, it removes all sockets in its folder and forgets all plugins. Therefore the folder is watched,
and servers whose sockets are missing are started and registered again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from nri_rdma.doors.deviceplugin.answers import Supply
from nri_rdma.doors.deviceplugin.guarded import cdi_device
from nri_rdma.doors.deviceplugin.pool_server import KUBELET_SOCKET, PoolServer
from nri_rdma.engine.shares import Guarding, ShareBook
from nri_rdma.errors import CdiError, KubeletError
from nri_rdma.host.watch import inotify
from nri_rdma.observe.spans import Recorder
from nri_rdma.tasks.listeners import Listeners, Source
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0
"""Pause after a failed registration, before the next attempt."""
ABSENT_S = 2.0
"""Pause between two checks whether the kubelet's socket exists, while it does not exist."""
LOOK_S = 10.0
"""Pause between two checks whether the sockets of our device plugins still exist, in case inotify missed a removal."""


class DevicePlugins:
    """The device plugins of all pools. A worker thread serves and registers them, because that imports grpc. `close`
    ends them."""

    def __init__(
        self,
        folder: Path,
        supply: Callable[[], Supply],
        shares: ShareBook,
        *,
        guard: Callable[[], Guarding],
        workers: Workers,
        listeners: Listeners,
        schedule: Callable[[float, Callable[[], None]], Callable[[], None]],
        spans: Recorder,
    ) -> None:
        """`supply` returns the devices and pools of the last scan. `schedule` calls a function after a pause and
        returns a function that cancels the call.

        `guard` writes the CDI spec that adds the guard, an OCI hook that keeps a container from starting without its
        devices. It returns why containers get no guard, or Guarding.ON; it raises CdiError and OSError if the spec
        cannot be written.
        """
        self._folder = folder
        self._supply = supply
        self._shares = shares
        self._workers = workers
        self._listeners = listeners
        self._schedule = schedule
        self.on_look: list[Callable[[], None]] = []
        """Functions that each periodic check calls, while the kubelet's socket exists."""
        self._cancel: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_queued = False
        self._is_new_kubelet = False
        self._error = ""
        """The last logged reason why a resource is not served. An unchanged reason is not logged again."""
        self._spans = spans
        self._watch: inotify.Inotify | None = None
        self._source: Source | None = None
        self._guard = guard
        self._is_guard_known = False
        self._servers: tuple[PoolServer, ...] = ()

    def open_later(self) -> None:
        """Have a worker serve and register the pools soon, and once more after each restart of the kubelet.

        The worker first writes the guard, an OCI hook that keeps a container from starting without its devices, since
        the runtime's configuration may have changed. Does nothing if no pool has an extended resource.
        """
        if self._shares.served:
            self._is_guard_known = False
            self._look_later()

    def node_was_read(self) -> None:
        """Send the kubelet the pools' present ids and their health, if they have changed. Called after each scan of the
        node."""
        for server in self._servers:
            server.tell_changes()

    def close(self) -> None:
        """Stop all servers. Call it after the workers are closed; calling it twice is allowed."""
        with self._lock:
            self._is_closed = True
            cancel, source, watch = self._cancel, self._source, self._watch
            self._source = self._watch = None
        cancel()
        if source is not None:
            self._listeners.remove(source)
        if watch is not None:
            watch.close()
        for server in self._servers:
            server.close()

    # -- below -------------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        with self._lock:
            if self._is_queued or self._is_closed:
                return
            self._is_queued = True
        self._workers.submit("device-plugins", self._look)

    def _look(self) -> None:
        """Serve and register every pool that is not served yet, then schedule the next check. The pause is shorter
        after a failure and while the kubelet's socket does not exist."""
        with self._lock:
            self._is_queued = False
            is_new_kubelet, self._is_new_kubelet = self._is_new_kubelet, False
        pause_s = ABSENT_S
        try:
            if (self._folder / KUBELET_SOCKET).exists():
                self._begin_watching()
                pause_s = LOOK_S if self._serve_missing(is_new_kubelet) else TRY_AGAIN_S
                for look in self.on_look:
                    look()
                self.node_was_read()  # a reload may have changed the offer without a scan
            else:
                self._none_is_registered(f"the kubelet has no {KUBELET_SOCKET} in {self._folder}")
        except Exception as error:  # a bug, or grpc cannot be imported: shares are not served until the next check
            log.exception("the shares are not served")
            self._none_is_registered(f"the daemon's log has the traceback of this error: {error!r}")
        with self._lock:
            self._cancel()
            if not self._is_closed:
                self._cancel = self._schedule(pause_s, self._look_later)

    def _serve_missing(self, is_new_kubelet: bool) -> bool:
        """Serve each pool that is not served, and return whether all pools are served now. The failure of one pool does
        not stop the others."""
        errors = []
        try:
            if not self._servers:
                self._servers = self._make_servers()
            if not self._is_guard_known:
                self._is_guard_known = True  # before it is asked: a new runtime may connect meanwhile
                self._set_guard(self._guard())
        except (CdiError, OSError) as error:
            self._is_guard_known = False
            errors.append(f"the guard of the shares cannot be written: {error}")
            self._none_is_registered(errors[0])
        for server in self._servers if self._is_guard_known else ():
            try:
                if is_new_kubelet or not server.is_there:
                    server.serve()
                self._shares.registered(server.pool.name)
            except KubeletError as error:
                errors.append(str(error))
                self._shares.registered(server.pool.name, str(error))
        told = "; ".join(errors)
        if told and told != self._error:
            log.warning("a resource is not served", extra={"error": told})
        self._error = told
        return not told

    def _none_is_registered(self, why: str) -> None:
        for name in self._shares.registrations:
            self._shares.registered(name, why)

    def _make_servers(self) -> tuple[PoolServer, ...]:
        return tuple(
            PoolServer(pool, self._folder, self._supply, self._shares.allocated, self._spans)
            for pool in self._shares.served
        )

    def _set_guard(self, guarding: Guarding) -> None:
        self._shares.guarding = guarding
        if guarding is not Guarding.ON:
            what = "containers with shares have no guard: they start without devices while the daemon is dead"
            log.warning(what if self._shares.pools else "the guard resource is not given", extra={"why": str(guarding)})
        for server in self._servers:
            server.guard = cdi_device(server.pool) if guarding is Guarding.ON else ""
            server.brings_nodes = guarding is Guarding.NO_CDI

    def _begin_watching(self) -> None:
        if self._watch is not None:
            return
        try:
            watch = inotify.Inotify()
        except OSError:  # the node has no inotify instance left: the folder is checked periodically
            return
        try:
            watch.add(str(self._folder), inotify.CREATE | inotify.MOVED_TO | inotify.DELETE)
        except OSError:  # as above
            watch.close()
            return
        source = Source(name="device plugins", fd=watch.fileno(), read=self._read)
        with self._lock:
            if self._is_closed:
                watch.close()
                return
            self._watch, self._source = watch, source
        self._listeners.add(source)

    def _read(self) -> None:
        watch = self._watch
        names = {event.name for event in watch.read()} if watch is not None else set()
        if KUBELET_SOCKET in names:
            with self._lock:
                self._is_new_kubelet = True
            self._look_later()
