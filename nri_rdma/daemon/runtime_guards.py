"""Asks the container runtime which of its handlers add the guard's OCI hook, which refuses a container without its
devices.

The metrics page needs it, and so do pods on whose devices RDMA must be proven. The runtime is asked again when someone
needs the answer and the last one is old. Its configuration changes only when it restarts.
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
"""Age in seconds up to which an answer is used again."""
UNGUARDED_AGAIN_S = 1.0
"""Age up to which an answer is used again to refuse a pod. It is short, because the guard may have been set up a moment
ago."""


class RuntimeGuards:
    """The runtime handlers, and whether they add the guard's OCI hook to their containers. Thread-safe."""

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
        """Return the last known answer: runtime handler to whether its containers have the guard. Handlers where this
        is unknown are left out.

        If the answer is old, a worker asks again. Does not block.
        """
        self._ask_again(AGAIN_S)
        return {it.name: not it.fault for it in self._setups if it.is_known}

    def is_guarded(self, asker: Asker, by: float) -> bool | None:
        """Return whether the containers of a pod have the guard; None if this is unknown. `asker` describes the pod.

        If the last answer is old, wait for a new one until `by` (seconds of `time.monotonic`). Raises NotReadyError at
        `by`.
        """
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
        """Have a worker ask the runtime, unless the last answer is at most `new_s` seconds old. Return a future that is
        done when there is an answer."""
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
        except ContainerdError as error:  # it may be restarting with another configuration
            log.debug("the runtime does not say which handlers it has", extra={"error": str(error)})
            found = None
        self._setups = found or ()
