"""The sockets of rtnetlink that a network namespace has: one for each caller of the moment, and idle ones."""

from __future__ import annotations

import threading
from typing import Final

from nri_rdma.host.netlink.route_socket import RouteSocket

IDLE_MAX: Final = 1
"""Idle sockets that are kept; further ones are closed. Only the host has several callers at once, and a daemon at rest
then holds the same number of sockets whatever it did."""
IDLE_MAX_OF_KEPT: Final = 2
"""The same while sockets are kept: an attach has two callers at once (attach/last_look.py)."""


class RouteSockets:
    """Safe for use by several threads."""

    def __init__(self, first: RouteSocket) -> None:
        self._lock = threading.Lock()
        self._idle = [first]
        self._count = 1
        self._generation = 0

    @property
    def count(self) -> int:
        """The number of sockets, those that callers have included."""
        return self._count

    def take(self) -> tuple[RouteSocket | None, int]:
        """Return an idle socket, None without any, and the number to give it back with."""
        with self._lock:
            return self._idle.pop() if self._idle else None, self._generation

    def add(self) -> None:
        """Count a socket that a caller has opened."""
        with self._lock:
            self._count += 1

    def give_back(self, route: RouteSocket, generation: int, most: int) -> None:
        """Keep a socket that a caller had, up to so many idle ones; close it where it is in doubt, or where the sockets
        were closed meanwhile."""
        with self._lock:
            keep = generation == self._generation and len(self._idle) < most and not route.is_broken
            if keep:
                self._idle.append(route)
            else:
                self._count -= 1
        if not keep:
            route.close()

    def close_idle(self, most: int = 0) -> None:
        """Close idle sockets beyond so many."""
        with self._lock:
            idle, self._idle = self._idle[most:], self._idle[:most]
            self._count -= len(idle)
        for route in idle:
            route.close()

    def close(self) -> None:
        """Close all of them; those that callers have are closed when they come back."""
        with self._lock:
            self._generation += 1
        self.close_idle()
