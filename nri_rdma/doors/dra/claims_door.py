"""The DRA driver of this node, from the daemon's start to its end: its sockets, its ResourceSlices and the status of
its claims.

The kubelet finds the sockets by itself, and keeps using them after its own restart. A socket that was removed is made
again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from nri_rdma.decide.advertised import DRIVER
from nri_rdma.doors.dra.dra_server import DraServer
from nri_rdma.doors.dra.publishing import Publisher
from nri_rdma.doors.dra.reporting import StatusWriter
from nri_rdma.errors import KubeletError
from nri_rdma.host.kubernetes.api import ApiServer
from nri_rdma.model.driver import DriverView
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0
"""Pause before the next attempt to make sockets that could not be made."""
LOOK_S = 10.0
"""Pause between two checks. A check makes removed sockets again, and looks for changes of the node that the kernel does
not announce."""


class ClaimsDoor:
    """The DRA driver. A worker thread opens it, because that imports grpc. `close` ends it."""

    def __init__(
        self,
        server: DraServer,
        publisher: Publisher,
        statuses: StatusWriter,
        api: ApiServer,
        *,
        workers: Workers,
        schedule: Callable[[float, Callable[[], None]], Callable[[], None]],
        look_at_node: Callable[[], None],
        withheld: Callable[[], tuple[str, ...]],
    ) -> None:
        """`schedule` calls a function after a pause and returns a function that cancels the call. `look_at_node`
        rescans the node if something changed that the kernel does not announce. `withheld` returns the devices that are
        not published because their netdevs are missing."""
        self._server = server
        self._publisher = publisher
        self._statuses = statuses
        self._api = api
        self._workers = workers
        self._schedule = schedule
        self._look_at_node = look_at_node
        self._withheld = withheld
        self._cancel: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._is_open = False
        self._is_closed = False
        self._error = ""

    def open_later(self) -> None:
        """Have a worker make the sockets soon, and check them from then on. Calling it twice is allowed."""
        with self._lock:
            if self._is_open or self._is_closed:
                return
            self._is_open = True
        self._statuses.start()
        self._look_later()

    def node_was_read(self) -> None:
        """Publish the node's devices if they have changed. Called after each scan of the node."""
        self._publisher.node_was_read()

    def view(self) -> DriverView:
        """Return the driver's present state, for `status` and metrics."""
        return DriverView(
            name=DRIVER,
            registration=self._server.registration,
            published=self._publisher.published,
            claims=self._statuses.counted(),
            rivals=dict(self._publisher.rivals),
            withheld=self._withheld(),
        )

    def close(self) -> None:
        """Remove the sockets and end the threads. Call it after the workers are closed; calling it twice is allowed."""
        with self._lock:
            self._is_closed = True
            cancel = self._cancel
        cancel()
        self._server.close()
        self._publisher.close()
        self._statuses.close()
        self._api.close()

    # -- below -------------------------------------------------------------------------------------------------------

    def _look_later(self) -> None:
        self._workers.submit("claims", self._look)

    def _look(self) -> None:
        pause_s = LOOK_S
        try:
            if not self._server.is_there:
                self._server.serve()
            self._error = ""
            self._look_at_node()
        except KubeletError as error:
            pause_s = TRY_AGAIN_S
            if str(error) != self._error:
                log.warning("claims are not served", extra={"error": str(error)})
            self._error = str(error)
        except Exception:  # a bug, or grpc cannot be imported: the next look may succeed
            log.exception("claims are not served")
        with self._lock:
            if not self._is_closed:
                self._cancel = self._schedule(pause_s, self._look_later)
