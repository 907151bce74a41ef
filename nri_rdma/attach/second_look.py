"""The second restore of netdevs that returned to the host, after udev and networkd (or NetworkManager) have configured
them.

To these programs a returning netdev is a new one. udev applies its .link file (MTU, queue length, MAC, alias). networkd
applies its .network file, and removes addresses that it did not add. So they remove configuration that the daemon has
just restored. A second look compares the netdev with its old state a few seconds later, and restores what differs.

If a pod needs the netdev earlier, the second look happens at once, before the pod's attach reads anything. Otherwise
the attach would capture a half-configured netdev, and the host would get that back. So no attach goes on before the
look has succeeded or was given up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

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


@dataclass(slots=True, eq=False)
class _Owed:
    """The second look at a netdev, which was not done yet."""

    move: NetdevMove
    cancel: Callable[[], None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held during the look. An attach of this netdev waits for it, and attaches of others do not."""


class SecondLooks:
    """Restores returned netdevs a second time, some seconds after their return, because udev or networkd may have
    changed their configuration. Safe for use by several threads; a worker does the restore."""

    def __init__(
        self, kernel: Kernel, workers: Workers, schedule: Callable[[float, Callable[[], None]], Callable[[], None]]
    ) -> None:
        self._kernel = kernel
        self._workers = workers
        self._schedule = schedule
        self._lock = threading.Lock()  # never held while the kernel is asked: a driver may let a call hang
        self._owed: dict[int, _Owed] = {}

    def expect(self, moves: Iterable[NetdevMove]) -> None:
        """Schedule a second restore of netdevs that have just returned to the host, because udev or networkd may
        reconfigure them."""
        with self._lock:
            for move in moves:
                key = move.link.ifindex
                if key in self._owed:
                    self._owed.pop(key).cancel()
                self._owed[key] = _Owed(move, self._later(key, 0))

    def take_now(self, ifindexes: Collection[int]) -> None:
        """Do the scheduled second restores of these netdevs now, because the netdevs are about to move into a pod. The
        restore removes what udev or networkd changed after the netdev's return. Raises KernelError if a restore fails;
        it stays scheduled."""
        for ifindex in ifindexes:
            owed = self._owed.get(ifindex)
            if owed is not None:
                self._take(ifindex, owed)

    def close(self) -> None:
        """Cancel all scheduled second restores of returned netdevs."""
        with self._lock:
            for owed in self._owed.values():
                owed.cancel()
            self._owed.clear()

    def _later(self, key: int, attempt: int) -> Callable[[], None]:
        """Have a worker look at the netdev after the pause that follows `attempt` failures; return what cancels it."""

        def due() -> None:
            self._workers.submit(f"second look at {key}", lambda: self._try(key, attempt))

        return self._schedule(PAUSES_S[attempt], due)

    def _try(self, key: int, attempt: int) -> None:
        owed = self._owed.get(key)
        if owed is None:
            return
        try:
            self._take(key, owed)
        except KernelError as error:
            facts = {"device": owed.move.device, "netdev": owed.move.link.name, "error": str(error)}
            log.warning("the host is not as before", extra=facts)
            with self._lock:
                if self._owed.get(key) is not owed:
                    return
                if attempt + 1 < len(PAUSES_S):
                    owed.cancel = self._later(key, attempt + 1)
                else:
                    del self._owed[key]

    def _take(self, key: int, owed: _Owed) -> None:
        """Do the second look at a netdev, unless it is done already. Raises KernelError if it fails."""
        with owed.lock:
            if self._owed.get(key) is not owed:
                return
            self._look(owed.move)
            with self._lock:
                if self._owed.get(key) is owed:
                    self._owed.pop(key).cancel()

    def _look(self, move: NetdevMove) -> None:
        """Restore the netdev if it differs from its old state. A netdev that is not on the host belongs to another pod
        now and is left alone. Raises KernelError."""
        home = find_on_host(self._kernel.links(self._kernel.host), move)
        if home is None:
            return
        changed = departures(capture_one(self._kernel, home.ifindex), move.link)
        if not changed:
            return
        restore(self._kernel, home.ifindex, move.link)
        facts = {"device": move.device, "netdev": move.link.name}
        what = tuple(op.describe() for op in changed[:_LOGGED_MAX])
        log.info("restored again: another program configured the returned netdev", extra={**facts, "what": what})
