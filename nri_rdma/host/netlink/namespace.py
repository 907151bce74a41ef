"""Network namespaces: opened, distinguished, entered, released.

A namespace is held as one thing with one end: a descriptor, the sockets that were opened in it, and the callers that
are in it at the moment (host/netlink/netns_visit.py). Each of them keeps the namespace alive, and everything in it away
from the host.
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
from nri_rdma.host.netlink.netns_visit import be_home, is_own, visiting
from nri_rdma.host.netlink.route_socket import RouteSocket
from nri_rdma.host.netlink.route_sockets import IDLE_MAX, IDLE_MAX_OF_KEPT, RouteSockets
from nri_rdma.host.netlink.spare_sockets import SpareSockets, using
from nri_rdma.wire import WireError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """The count of objects that pin network namespaces, the host's own among them.

    `closing` are namespaces that were closed while a call was inside: each is released when its call returns.
    """

    namespaces: int = 0
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
        """Remove a namespace that is released, with all its sockets."""
        with self._lock:
            self._held.discard(namespace)

    def count(self) -> Held:
        """Return the number of namespaces and of what pins them now."""
        with self._lock:
            held = tuple(self._held)
        return Held(
            namespaces=len(held),
            sockets=sum(it.sockets for it in held),
            closing=sum(1 for it in held if it.is_closed),
        )


class HeldNamespace:
    """A namespace with all that pins it: while it is held, it and all that is in it stay alive.

    Several callers may ask at once, each with a socket of its own: one that hangs in a driver keeps nobody else
    waiting. Safe for use by several threads.
    """

    def __init__(
        self,
        path: str,
        *,
        boot_id: str,
        holdings: Holdings,
        handed: HandedNamespaces | None = None,
        are_sockets_kept: bool = True,
    ) -> None:
        """`handed` are the namespaces that count before what is at their paths. `are_sockets_kept`: until it rests,
        else only meanwhile `keeping`. Raises NamespaceError."""
        self._handed = handed or HandedNamespaces()
        try:
            self._fd = self._handed.open(path)
        except OSError as error:
            raise NamespaceError(f"open the network namespace {path}", error.errno or 0) from error
        except ValueError as error:  # no file can have a path with a null character
            raise NamespaceError(f"open the network namespace {path!r}", errno.ENOENT) from error
        self._lock = threading.Lock()
        self._users = 0
        self._are_sockets_kept = are_sockets_kept
        self._spare = SpareSockets(are_kept=are_sockets_kept)
        self._holdings = holdings
        self._path = path
        self.is_closed = False
        self.is_host = False
        try:
            self._state = os.fstat(self._fd)
            self._is_own = is_own(self._state)
            first = self.run(RouteSocket)
            cookie = _cookie_of(first)
        except BaseException:
            os.close(self._fd)
            raise
        self.identity = NamespaceIdentity(boot_id=boot_id, cookie=cookie, path=path)
        """The kernel's number of this namespace, and how it was found."""
        self._routes = RouteSockets(first)
        holdings.add(self)

    @property
    def sockets(self) -> int:
        """Number of sockets in the namespace, without those that calls have for a moment."""
        return self._routes.count + self._spare.count

    def is_at(self, other: HeldNamespace) -> bool:
        """Return whether both are one namespace: while both are open, inode numbers do not repeat."""
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

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the caller's thread, which is in the namespace meanwhile, and return its result; its exceptions
        pass through.

        EBADF: closed. ESTALE: the descriptor leads elsewhere than when it was opened, or the caller is in another
        namespace already.
        """
        spare = self._enter_use()
        try:
            if self._is_own:
                be_home()
                with using(spare):
                    return work()
            if not os.path.samestat(os.fstat(self._fd), self._state):
                raise self._elsewhere()
            with visiting(self._fd), using(spare):
                return work()
        finally:
            self._leave_use()

    def ask(self, work: Callable[[RouteSocket], T]) -> T:
        """Run `work` with a socket of rtnetlink of the namespace, in the caller's thread, which stays where it is: the
        kernel goes by the socket's namespace, whoever sends. Return its result. Raises as `run`."""
        be_home()
        self._enter_use()
        try:
            route, generation = self._routes.take()
            route = route or self._new_socket()
            try:
                return work(route)
            finally:
                self._routes.give_back(route, generation, self._most_idle())
        finally:
            self._leave_use()

    @contextmanager
    def descriptor(self) -> Iterator[int]:
        """Yield the descriptor, which stays open meanwhile even if another thread closes the namespace: the number
        could then be another file's. Raises EBADF when the namespace is closed."""
        self._enter_use()
        try:
            yield self._fd
        finally:
            self._leave_use()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep sockets open meanwhile: what is closed is freed later, and a move of a link waits for that."""
        try:
            with self._spare.keeping():
                yield
        finally:
            self._routes.close_idle(self._most_idle())

    def rest(self) -> None:
        """Close the sockets, keep the descriptor: no call is expected for long. A socket that is in use is closed when
        its call returns."""
        with self._lock:
            spare = self._spare
            if not self.is_closed:  # else the closed ones stay, and close what a call gives back
                self._spare = SpareSockets(are_kept=self._are_sockets_kept)
        spare.close()
        self._routes.close()

    def close(self) -> None:
        """Release the namespace; closing twice does nothing.

        Never blocks on the kernel. When a call is inside, the namespace is released when the call returns: until then
        its thread and its socket pin the namespace anyway, and the number of the descriptor must not be used again.
        """
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
        self.rest()
        self._enter_use(even_closed=True)
        self._leave_use()

    def _new_socket(self) -> RouteSocket:
        route = self.run(RouteSocket)
        if _cookie_of(route) != self.identity.cookie:
            route.close()
            raise self._elsewhere()
        self._routes.add()
        return route

    def _most_idle(self) -> int:
        if self.is_closed:
            return 0
        return IDLE_MAX_OF_KEPT if self._spare.are_kept else IDLE_MAX

    def _elsewhere(self) -> KernelError:
        return KernelError("enter the network namespace", errno.ESTALE, f"{self._path} is another one now")

    def _enter_use(self, *, even_closed: bool = False) -> SpareSockets:
        """Keep the descriptor open until _leave_use; return the spare sockets of this moment."""
        with self._lock:
            if self.is_closed and not even_closed:
                raise KernelError("enter the network namespace", errno.EBADF)
            self._users += 1
            return self._spare

    def _leave_use(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self.is_closed and not self._users and self._fd >= 0
            fd, self._fd = (self._fd, -1) if is_last else (-1, self._fd)
        if is_last:
            os.close(fd)
            self._holdings.discard(self)


def _cookie_of(route: RouteSocket) -> int:
    """Return the number of a new socket's namespace; close the socket where that cannot be told."""
    try:
        return route.cookie()
    except BaseException:
        route.close()
        raise


def inside(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work` with a socket of rtnetlink of the namespace, in the caller's thread, which is in the namespace
    meanwhile. Return its result."""
    it = held(namespace)
    try:
        return it.ask(lambda route: it.run(lambda: work(route)))
    except (WireError, OSError) as error:
        raise _named(operation, error) from error


def asked(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work`, which needs only a socket of rtnetlink of the namespace, and return its result."""
    try:
        return held(namespace).ask(work)
    except (WireError, OSError) as error:
        raise _named(operation, error) from error


def _named(operation: str, error: WireError | OSError) -> KernelError:
    if isinstance(error, WireError):
        return KernelError(operation, errno.EPROTO, str(error))
    return KernelError(operation, error.errno or 0, error.strerror or "")


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
