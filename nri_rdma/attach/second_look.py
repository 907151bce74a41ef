"""The second restore of netdevs that returned to the host, after udev and networkd (or NetworkManager) have configured
them.

To these programs a returning netdev is a new one. udev applies its .link file (MTU, queue length, MAC, alias). networkd
applies its .network file, and removes addresses that it did not add. So they remove configuration that the daemon has
just restored. A second look compares the netdev with its old state a few seconds later, and restores what differs.

If a pod needs the netdev earlier, the second look happens at once, before the pod's attach reads anything. Otherwise
the attach would capture a half-configured netdev.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable

from nri_rdma.attach.plan import NetdevMove
from nri_rdma.attach.port import Kernel, KernelError
from nri_rdma.attach.return_netdev import capture_one, departures, find_on_host, restore
from nri_rdma.tasks.workers import Workers

log = logging.getLogger(__name__)

PAUSES_S = (2.0, 4.0, 8.0)
"""Pauses in seconds: from the return of a netdev to its second restore, and before the retries of a failed one. udev
and networkd were done after 1.0 s on an emulated machine (systemd 262)."""

_LOGGED_MAX = 20
"""The number of operations that a log line names, because a link may have lost thousands of routes."""


class SecondLooks:
    """Restores returned netdevs a second time, some seconds after their return, because udev or networkd may have
    changed their configuration. Safe for use by several threads; a worker does the restore."""

    def __init__(
        self, kernel: Kernel, workers: Workers, schedule: Callable[[float, Callable[[], None]], Callable[[], None]]
    ) -> None:
        self._kernel = kernel
        self._workers = workers
        self._schedule = schedule
        self._lock = threading.Lock()  # held during a look, so that no attach moves the netdev meanwhile
        self._due: dict[int, tuple[NetdevMove, Callable[[], None]]] = {}

    def expect(self, moves: Iterable[NetdevMove], attempt: int = 0) -> None:
        """Schedule a second restore of netdevs that have just returned to the host, because udev or networkd may
        reconfigure them. `attempt` is the number of failed tries so far; it selects the pause from PAUSES_S."""
        with self._lock:
            for move in moves:
                self._expect(move, attempt)

    def take_now(self, ifindexes: Collection[int]) -> None:
        """Do the scheduled second restores of these netdevs now, because the netdevs are about to move into a pod. The
        restore removes what udev or networkd changed after the netdev's return."""
        with self._lock:
            for ifindex in self._due.keys() & set(ifindexes):
                move, cancel = self._due.pop(ifindex)
                cancel()
                self._look(move, len(PAUSES_S))

    def close(self) -> None:
        """Cancel all scheduled second restores of returned netdevs."""
        with self._lock:
            for _, cancel in self._due.values():
                cancel()
            self._due.clear()

    def _expect(self, move: NetdevMove, attempt: int) -> None:
        key = move.link.ifindex
        if key in self._due:
            self._due.pop(key)[1]()
        cancel = self._schedule(PAUSES_S[attempt], lambda: self._submit(key, attempt))
        self._due[key] = move, cancel

    def _submit(self, key: int, attempt: int) -> None:
        self._workers.submit(f"second look at {key}", lambda: self._take(key, attempt))

    def _take(self, key: int, attempt: int) -> None:
        with self._lock:
            if key in self._due:
                self._look(self._due.pop(key)[0], attempt)

    def _look(self, move: NetdevMove, attempt: int) -> None:
        """Restore the netdev if it differs from its old state; the caller holds the lock. A netdev that is not on the
        host belongs to another pod now and is left alone."""
        facts = {"device": move.device, "netdev": move.link.name}
        try:
            home = find_on_host(self._kernel.links(self._kernel.host), move)
            if home is None:
                return
            changed = departures(capture_one(self._kernel, home.ifindex), move.link)
            if not changed:
                return
            restore(self._kernel, home.ifindex, move.link)
            what = tuple(op.describe() for op in changed[:_LOGGED_MAX])
            log.info("restored again: another program configured the returned netdev", extra={**facts, "what": what})
        except KernelError as error:
            log.warning("the host is not as before", extra={**facts, "error": str(error)})
            if attempt + 1 < len(PAUSES_S):
                self._expect(move, attempt + 1)
