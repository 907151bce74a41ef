"""Keeps idle netlink sockets open for reuse by short queries.

The kernel frees a closed socket after an RCU grace period, and a netdev's move waits for everything that was freed
before the move. On Linux 6.18, moving four netdevs one after the other took 18.5 ms each if no socket was closed before
or between the moves, and 19.7 ms otherwise.

NETLINK_RDMA sockets are never kept: an open one would keep the module ib_core from being unloaded, which driver updates
do.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.patience import PATIENCE_S, be_patient

_KEPT = 4
"""The most idle sockets per protocol. Reading routes needs two: one for the list, and one for events that show that the
list is out of date. An attach has two readers of the host's routes at once (attach/last_look.py)."""


class SpareSockets:
    """The idle sockets of one network namespace, by protocol. Safe for use by several threads."""

    def __init__(self, *, are_kept: bool) -> None:
        """`are_kept`: keep returned sockets open until `close` is called; otherwise only inside a `keeping()` block."""
        self._lock = threading.Lock()
        self._idle: dict[int, list[socket.socket]] = {}
        self._keepers = int(are_kept)

    @property
    def are_kept(self) -> bool:
        """Return whether returned sockets are kept open at present."""
        return self._keepers > 0

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep returned sockets open while the block runs. At its end, idle sockets are closed unless something else
        keeps them."""
        with self._lock:
            self._keepers += 1
        try:
            yield
        finally:
            self._let_go(1)

    @property
    def count(self) -> int:
        """The number of idle sockets of all protocols."""
        with self._lock:
            return sum(map(len, self._idle.values()))

    def take(self, protocol: int) -> socket.socket | None:
        """Return an idle socket of this protocol, which the caller then owns; None if there is none."""
        with self._lock:
            idle = self._idle.get(protocol)
            return idle.pop() if idle else None

    def put(self, protocol: int, spare: socket.socket) -> None:
        """Keep a socket for reuse; it must have no pending answer. The socket is closed instead if sockets are not kept
        now, or if there are enough idle ones."""
        with self._lock:
            idle = self._idle.setdefault(protocol, [])
            keep = self.are_kept and len(idle) < _KEPT
            if keep:
                idle.append(spare)
        if not keep:
            spare.close()

    def close(self) -> None:
        """Close all idle sockets. From now on, every socket that a caller returns is closed."""
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
    """Records for each thread which store of idle netlink sockets it uses. Each thread sees its own value."""

    spare: SpareSockets | None = None
    """The idle sockets of the namespace that the thread is in; None: sockets are opened and closed for each use."""


_calling = _Calling()


@contextmanager
def using(spare: SpareSockets) -> Iterator[None]:
    """Let the calling thread take its netlink sockets from `spare` while the block runs. The thread must be in the
    namespace of these sockets."""
    before, _calling.spare = _calling.spare, spare
    try:
        yield
    finally:
        _calling.spare = before


def take_socket(protocol: int) -> socket.socket:
    """Return an idle or a new netlink socket of the calling thread's namespace, which waits a limited time for answers.
    The caller returns it with `give_back`, or closes it. Raises KernelError if no socket can be opened."""
    spare = _calling.spare.take(protocol) if _calling.spare is not None else None
    if spare is not None:
        return spare
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        try:
            be_patient(made)
            made.bind((0, 0))  # an unbound socket receives no events
        except BaseException:
            made.close()
            raise
    except OSError as error:
        raise KernelError(f"open a netlink socket of protocol {protocol}", error.errno or 0) from error
    return made


def give_back(protocol: int, spare: socket.socket) -> None:
    """Return a socket that `take_socket` returned, so that it can be reused. The socket must have no pending answer."""
    if _calling.spare is not None:
        _calling.spare.put(protocol, spare)
    else:
        spare.close()


@contextmanager
def momentary(protocol: int) -> Iterator[socket.socket]:
    """Yield a netlink socket of the calling thread's namespace. Raises KernelError if no socket can be opened, and
    ETIMEDOUT if the kernel does not answer in time.

    After an error the socket is closed, not reused, because late answers may still arrive.
    """
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
