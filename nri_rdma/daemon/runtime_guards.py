"""Asks the container runtime which of its handlers add the guard, an OCI hook that keeps a container from starting
without its devices.

The metrics page shows the answer. Pods whose containers must pass an RDMA test need the guard, so the daemon asks for
them, too. The runtime is asked again when the answer is needed and the last one is old, because a restarted runtime may
have another configuration.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NotReadyError
from nri_rdma.host.containerd.containerd_api import ContainerdError
from nri_rdma.host.containerd.handlers import CRIO_SOCKET
from nri_rdma.host.guard_setups import Setup, running_setups, setup_of
from nri_rdma.model.pool import Asker
from nri_rdma.tasks.waiting import settled
from nri_rdma.tasks.workers import Workers
from nri_rdma.text.share_annotations import GUARD_OFF, guard_label

log = logging.getLogger(__name__)

AGAIN_S = 15.0
"""Age in seconds up to which the runtime's answer is reused."""
UNGUARDED_AGAIN_S = 1.0
"""Age in seconds up to which the runtime's answer is reused to refuse a pod. It is short, because the guard hook may
have been set up a moment ago."""


class RuntimeGuards:
    """The runtime's handlers, and whether each adds the guard to its containers. The guard is an OCI hook that keeps a
    container from starting without its devices. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        workers: Workers,
        *,
        crio_socket: Path = CRIO_SOCKET,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._workers = workers
        self._sockets = (settings.containerd_socket, crio_socket)
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._asking: Future[None] | None = None
        self._setups: tuple[Setup, ...] = ()

    def told(self) -> Mapping[str, bool]:
        """Return for each runtime handler whether its containers have the guard, an OCI hook that keeps a container
        from starting without its devices. Handlers where this is unknown are left out. The answer comes from memory; if
        it is old, a worker asks the runtime again, for later calls."""
        self._ask_again(AGAIN_S)
        return {it.name: not it.fault for it in self._setups if it.is_known}

    def is_guarded(self, asker: Asker, by: float) -> bool | None:
        """Return whether the containers of the pod `asker` have the guard, an OCI hook that keeps a container from
        starting without its devices; None if this is unknown. If the last answer of the runtime is old, wait for a new
        one. Raises NotReadyError if none has come at `by`, in seconds of `time.monotonic`."""
        handler, prefix = asker.runtime_handler, self._settings.annotation_prefix
        is_left_out = (guard_label(prefix), GUARD_OFF) in asker.labels
        if self._settings.guard_resource and not is_left_out:
            return True  # the guard resource brings the guard; CreateContainer refuses a container without it
        for new_s in (AGAIN_S, UNGUARDED_AGAIN_S):
            if not settled(self._ask_again(new_s), by - time.monotonic()):
                raise NotReadyError(
                    ErrorCode.NOT_READY,
                    "network is not ready: the runtime has not said yet which of its handlers have the guard",
                    where=f"runtime handler {handler or 'by default'}",
                    hint="nothing to do: the kubelet tries again",
                )
            found = setup_of(self._setups, handler)
            if found is not None and not found.fault:
                return True
        return False if found is not None and found.is_known else None

    def _ask_again(self, new_s: float) -> Future[None]:
        """Have a worker ask the runtime for its handlers, unless the last answer is at most `new_s` seconds old. Return
        a future that is done when there is an answer."""
        with self._lock:
            now, last = self._clock(), self._asking
            if last is not None and (not last.done() or now < self._asked_at + new_s):
                return last
            self._asked_at = now
            self._asking = asking = self._workers.submit("guards", self._ask)
            return asking

    def _ask(self) -> None:
        try:
            found = running_setups(self._sockets, self._settings)
        except (ContainerdError, OSError) as error:  # it may be restarting with another configuration
            log.debug("the runtime does not say which handlers it has", extra={"error": str(error)})
            found = None
        self._setups = found or ()
