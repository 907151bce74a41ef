"""The rtnetlink sockets of one network namespace: one for each present caller, and idle ones for later callers."""

from __future__ import annotations

import threading
from typing import Final

from nri_rdma.host.netlink.sockets.route_socket import RouteSocket

IDLE_MAX: Final = 1
"""The most idle sockets to keep; others are closed. One is enough, because only the host's namespace has several
callers at once. It also keeps the number of sockets of an idle daemon constant."""
IDLE_MAX_OF_KEPT: Final = 2
"""The most idle sockets to keep while devices are attached to a pod. An attach has two callers at once
(attach/last_look.py)."""


class RouteSockets:
    """The rtnetlink sockets of one network namespace, of which idle ones are reused. Safe for use by several
    threads."""

    def __init__(self, first: RouteSocket) -> None:
        self._lock = threading.Lock()
        self._idle = [first]
        self._count = 1
        self._generation = 0

    @property
    def count(self) -> int:
        """The number of open sockets, including those in use."""
        return self._count

    def take(self) -> tuple[RouteSocket | None, int]:
        """Return an idle socket (None if there is none), and the generation number that the caller passes to
        `give_back`. The generation changes with each call of `close`."""
        with self._lock:
            return self._idle.pop() if self._idle else None, self._generation

    def add(self) -> None:
        """Count a new socket that a caller has opened."""
        with self._lock:
            self._count += 1

    def give_back(self, route: RouteSocket, generation: int, most: int) -> None:
        """Take back a caller's socket and keep it as idle. Close it instead if it is broken, if there are `most` idle
        sockets already, or if `close` was called since `take` returned this `generation`."""
        with self._lock:
            keep = generation == self._generation and len(self._idle) < most and not route.is_broken
            if keep:
                self._idle.append(route)
            else:
                self._count -= 1
        if not keep:
            route.close()

    def close_idle(self, most: int = 0) -> None:
        """Close idle sockets until at most `most` are left."""
        with self._lock:
            idle, self._idle = self._idle[most:], self._idle[:most]
            self._count -= len(idle)
        for route in idle:
            route.close()

    def close(self) -> None:
        """Close all idle sockets; a socket in use is closed when its caller gives it back."""
        with self._lock:
            self._generation += 1
        self.close_idle()
