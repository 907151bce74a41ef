"""Netlink sockets that are needed for a moment, kept open for the next one.

A socket that is closed is freed after a grace period (RCU), and a netdev's move waits for all that was freed before it:
of four netdevs moved one after the other each took 18.5 instead of 19.7 ms, on Linux 6.18, when nothing was closed
before or in between.

There is no socket of NETLINK_RDMA among them: an open one is a reference to the module ib_core, which could not be
unloaded then (as updates of drivers do).
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.patience import PATIENCE_S, be_patient

_KEPT = 4
"""Idle sockets of each protocol: for a list of routes one is asked and one hears whether the answer is out of date, and
an attach has two callers on the host (attach/last_look.py)."""


class SpareSockets:
    """The idle sockets of one network namespace, by protocol, as long as somebody keeps them. Safe for use by several
    threads."""

    def __init__(self, *, are_kept: bool) -> None:
        """`are_kept`: until `close`; else only meanwhile `keeping`."""
        self._lock = threading.Lock()
        self._idle: dict[int, list[socket.socket]] = {}
        self._keepers = int(are_kept)

    @property
    def are_kept(self) -> bool:
        """Return whether somebody keeps them."""
        return self._keepers > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep them meanwhile."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            self._let_go(1)

    @property
    def count(self) -> int:
        """The number of idle sockets."""
        with self._lock:
            return sum(map(len, self._idle.values()))

    def take(self, protocol: int) -> socket.socket | None:
        """Return a socket, which is the caller's from now on; None without any."""
        with self._lock:
            idle = self._idle.get(protocol)
            return idle.pop() if idle else None

    def put(self, protocol: int, spare: socket.socket) -> None:
        """Keep a socket that has no answer under way; close one too many."""
        with self._lock:
            idle = self._idle.setdefault(protocol, [])
            keep = self.are_kept and len(idle) < _KEPT
            if keep:
                idle.append(spare)
        if not keep:
            spare.close()

    def close(self) -> None:
        """Close all of them, and those that come back later: nobody keeps them any more."""
        self._let_go(self._keepers)

    def _let_go(self, keepers: int) -> None:
        with self._lock:
            self._keepers -= keepers
            every: dict[int, list[socket.socket]] = {}
            if not self.are_kept:
                every, self._idle = self._idle, {}
        for idle in every.values():
            for spare in idle:
                spare.close()


class _Calling(threading.local):
    """Of the calling thread."""

    spare: SpareSockets | None = None
    """Those of the namespace that it is in; None: sockets are opened and closed."""


_calling = _Calling()


@contextmanager
def using(spare: SpareSockets) -> Iterator[None]:
    """Have the calling thread use these meanwhile: it is in their namespace."""
    before, _calling.spare = _calling.spare, spare
    try:
        yield
    finally:
        _calling.spare = before


def take_socket(protocol: int) -> socket.socket:
    """Return a netlink socket of the namespace that the calling thread is in, which waits for answers for a limited
    time. Give it back, or close it. Raises KernelError."""
    spare = _calling.spare.take(protocol) if _calling.spare is not None else None
    if spare is not None:
        return spare
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            be_patient(made)
            made.bind((0, 0))  # one without a number of its own hears no news
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise KernelError(f"open a netlink socket of protocol {protocol}", error.errno or 0) from error
    return made


def give_back(protocol: int, spare: socket.socket) -> None:
    """Give a socket back that has no answer under way."""
    if _calling.spare is not None:
        _calling.spare.put(protocol, spare)
    else:
        spare.close()


@contextmanager
def momentary(protocol: int) -> Iterator[socket.socket]:
    """Yield a socket as take_socket does. It is closed after an error, since answers may be under way. Raises
    KernelError; ETIMEDOUT: no answer came in time."""
    taken = take_socket(protocol)
    try:
        yield taken
    except BlockingIOError as error:
        taken.close()
        operation = f"wait for an answer of netlink protocol {protocol}"
        raise KernelError(operation, errno.ETIMEDOUT, f"no answer in {PATIENCE_S} s") from error
    except BaseException:
        taken.close()
        raise
    give_back(protocol, taken)
