"""Network namespaces: opened, distinguished, entered, released.

A namespace is held as one thing with one end: a descriptor, and the threads inside it with their sockets
(host/netlink/netns_thread.py). Each of them keeps the namespace alive, and everything in it away from the host.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nri_rdma.attach.port import KernelError, Namespace, NamespaceError, NamespaceIdentity
from nri_rdma.host.netlink.handed import HandedNamespaces
from nri_rdma.host.netlink.netns_thread import Inside, Resident, Spare, Worker, is_own
from nri_rdma.host.netlink.route_socket import RouteSocket
from nri_rdma.wire import WireError

T = TypeVar("T")

IDLE_MAX = 1
"""Idle threads that a namespace keeps; further ones end. Only the host has several callers at once, and a daemon at
rest then holds the same number of threads whatever it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The count of objects that pin network namespaces, the host's own among them.

    `closing` are namespaces that were closed while a call was inside: each is released when its call returns.
    """

    namespaces: int = 0
    threads: int = 0
    sockets: int = 0
    closing: int = 0


class Holdings:
    """All namespaces that are held. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[HeldNamespace] = set()

    def add(self, namespace: HeldNamespace) -> None:
        """Add a namespace that is held now."""
        with self._lock:
            self._held.add(namespace)

    def discard(self, namespace: HeldNamespace) -> None:
        """Remove a namespace that is released, with all its threads."""
        with self._lock:
            self._held.discard(namespace)

    def count(self) -> Held:
        """Return the number of namespaces and of what pins them now."""
        with self._lock:
            held = tuple(self._held)
        return Held(
            namespaces=len(held),
            threads=sum(it.threads for it in held),
            sockets=sum(it.sockets for it in held),
            closing=sum(1 for it in held if it.is_closed),
        )


class HeldNamespace:
    """A namespace with all that pins it: while it is held, it and all that is in it stay alive.

    Several callers may be inside at once, each with a thread of its own: one that hangs in a driver keeps nobody else
    waiting. Safe for use by several threads.
    """

    def __init__(
        self, path: str, *, boot_id: str, holdings: Holdings, spare: Spare, handed: HandedNamespaces | None = None
    ) -> None:
        """`handed` are the namespaces that count before what is at their paths."""
        self._handed = handed or HandedNamespaces()
        try:
            self._fd = self._handed.open(path)
        except OSError as error:
            raise NamespaceError(f"open the network namespace {path}", error.errno or 0) from error
        except ValueError as error:  # no file can have a path with a null character
            raise NamespaceError(f"open the network namespace {path!r}", errno.ENOENT) from error
        self._lock = threading.Lock()
        self._is_own = is_own(self._fd)
        self._users = 0
        self._generation = 0
        self._holdings = holdings
        self._spare = spare
        self.is_closed = False
        self.is_host = False
        self._boot_id, self._path = boot_id, path
        try:
            self._first = self._start()
        except BaseException:
            os.close(self._fd)
            raise
        self._idle = [self._first]
        self._workers = 1
        holdings.add(self)

    @property
    def identity(self) -> NamespaceIdentity:
        """The kernel's number of this namespace, once it is entered. Raises KernelError when it cannot be entered."""
        return NamespaceIdentity(boot_id=self._boot_id, cookie=self._first.cookie, path=self._path)

    def wait_until_entered(self) -> None:
        """Wait until a thread is inside the namespace. Raises KernelError when the namespace cannot be entered."""
        _ = self._first.cookie

    @property
    def threads(self) -> int:
        """Number of its own threads that are inside."""
        return 0 if self._is_own else self._workers

    @property
    def sockets(self) -> int:
        """Number of sockets in the namespace."""
        return self._workers

    def is_at(self, other: HeldNamespace) -> bool:
        """Return whether both are one namespace, also before it is entered: while both are open, inode numbers do not
        repeat."""
        return os.path.samestat(os.fstat(self._fd), os.fstat(other.fd))

    @property
    def is_at_its_path(self) -> bool:
        """Return whether its path still leads to it. Raises KernelError where it is closed."""
        with self.descriptor() as fd:
            own = os.fstat(fd)
        try:
            return os.path.samestat(own, self._handed.state(self._path))
        except OSError:  # there is nothing at the path
            return False

    @property
    def fd(self) -> int:
        """The descriptor; a caller that keeps using it asks for it with `descriptor`."""
        return self._fd

    def run(self, work: Callable[[Inside], T]) -> T:
        """Run `work` in a thread inside the namespace, and return its result; its exceptions pass through.

        EBADF: closed. ESTALE: the descriptor leads elsewhere than when it was opened.
        """
        insider, generation = self._take()
        try:
            return insider.run(work)
        finally:
            self._give_back(insider, generation)

    def ask(self, work: Callable[[RouteSocket], T]) -> T:
        """Run `work` with a socket of rtnetlink of the namespace, in the caller's thread, which stays where it is.
        Return its result."""
        insider, generation = self._take()
        try:
            return insider.lend(work)
        finally:
            self._give_back(insider, generation)

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield the descriptor, which stays open meanwhile even if another thread closes the namespace: the number
        could then be another file's. Raises EBADF when the namespace is closed."""
        self._enter_use()
        try:
            yield self._fd
        finally:
            self._leave_use()

    def rest(self) -> None:
        """End the threads and their sockets, keep the descriptor: no call is expected for long. Busy threads end when
        their call returns."""
        with self._lock:
            self._generation += 1
            idle, self._idle = self._idle, []
        self._end(idle)
        self._spare.refill()

    def close(self) -> None:
        """Release the namespace; closing twice does nothing.

        Never blocks on the kernel. When a call is inside, the namespace is released when the call returns: until then
        its thread pins the namespace anyway, and the number of the descriptor must not be used again.
        """
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.rest()
        if self.is_host:
            self._spare.dismiss()
        self._enter_use(even_closed=True)
        self._leave_use()

    def _take(self) -> tuple[Worker, int]:
        self._enter_use()
        try:
            with self._lock:
                generation = self._generation
                if self._idle:
                    return self._idle.pop(), generation
            return self._new_insider(), generation
        except BaseException:
            self._leave_use()
            raise

    def _start(self) -> Worker:
        return Resident() if self._is_own else self._spare.enter(self._fd)

    def _new_insider(self) -> Worker:
        insider = self._start()
        with self._lock:
            self._workers += 1
        try:
            if insider.cookie != self._first.cookie:
                raise KernelError("enter the network namespace", errno.ESTALE, f"{self._path} is another one now")
        except BaseException:
            self._end([insider])
            raise
        return insider

    def _give_back(self, insider: Worker, generation: int) -> None:
        with self._lock:
            keep = not self.is_closed and generation == self._generation and len(self._idle) < IDLE_MAX
            if keep:
                self._idle.append(insider)
        if not keep:
            self._end([insider])
        self._leave_use()

    def _end(self, insiders: list[Worker]) -> None:
        for insider in insiders:
            insider.end()
        for insider in insiders:
            insider.join()
        with self._lock:
            self._workers -= len(insiders)

    def _enter_use(self, *, even_closed: bool = False) -> None:
        with self._lock:
            if self.is_closed and not even_closed:
                raise KernelError("enter the network namespace", errno.EBADF)
            self._users += 1

    def _leave_use(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self.is_closed and not self._users and self._fd >= 0
            fd, self._fd = (self._fd, -1) if is_last else (-1, self._fd)
        if is_last:
            os.close(fd)
            self._holdings.discard(self)


def inside(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work` in a thread that is inside the namespace, and return its result."""

    def with_socket(inside: Inside) -> T:
        return work(inside.route)

    with _named(operation):
        return held(namespace).run(with_socket)


def asked(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work`, which needs only a socket of rtnetlink of the namespace, and return its result."""
    with _named(operation):
        return held(namespace).ask(work)


@contextmanager
def _named(operation: str) -> Iterator[None]:
    try:
        yield
    except WireError as error:
        raise KernelError(operation, errno.EPROTO, str(error)) from error
    except OSError as error:
        raise KernelError(operation, error.errno or 0, error.strerror or "") from error


def held(namespace: Namespace) -> HeldNamespace:
    """Return the namespace as what it is here."""
    if not isinstance(namespace, HeldNamespace):
        raise TypeError("a namespace of another kernel")
    return namespace


def read_boot_id() -> str:
    """Return the kernel's id of this boot; "" when the kernel has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # a stand-in kernel: the cookie still tells namespaces of one boot apart
