"""Opens, identifies, enters and releases network namespaces.

One object (HeldNamespace) holds everything that keeps a namespace alive: a descriptor, the sockets that were opened in
it, and the threads that are in it at the moment (module netns_visit). While any of them exists, the kernel does not
return the namespace's devices to the host.
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
from nri_rdma.host.netlink.namespaces.handed import HandedNamespaces
from nri_rdma.host.netlink.namespaces.netns_visit import be_home, is_own, visiting
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket
from nri_rdma.host.netlink.sockets.route_sockets import IDLE_MAX, IDLE_MAX_OF_KEPT, RouteSockets
from nri_rdma.host.netlink.sockets.spare_sockets import SpareSockets, using
from nri_rdma.wire import WireError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCounts:
    """The number of open namespaces and of sockets in them, including the host's namespace.

    `closing` counts namespaces that were closed while a call used them. Each is released when its last call returns.
    """

    namespaces: int = 0
    sockets: int = 0
    closing: int = 0


class OpenNamespaces:
    """The set of all namespaces that this process has open. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[HeldNamespace] = set()

    def add(self, namespace: HeldNamespace) -> None:
        """Count a namespace that was opened."""
        with self._lock:
            self._held.add(namespace)

    def discard(self, namespace: HeldNamespace) -> None:
        """Stop counting a namespace that was released, with all its sockets."""
        with self._lock:
            self._held.discard(namespace)

    def count(self) -> OpenCounts:
        """Return the present numbers of open namespaces and sockets."""
        with self._lock:
            held = tuple(self._held)
        return OpenCounts(
            namespaces=len(held),
            sockets=sum(it.sockets for it in held),
            closing=sum(1 for it in held if it.is_closed),
        )


class HeldNamespace:
    """An open network namespace, with the descriptor and sockets that keep it alive. Safe for use by several threads.

    Several callers may use it at once, each with a socket of its own, so that a call that hangs in a driver does not
    block other callers.
    """

    def __init__(
        self,
        path: str,
        *,
        boot_id: str,
        open_namespaces: OpenNamespaces,
        handed: HandedNamespaces | None = None,
        are_sockets_kept: bool = True,
    ) -> None:
        """Open the namespace at `path`. Raises NamespaceError if it cannot be opened.

        `handed` has namespaces that another process sent as descriptors; they take precedence over the file at `path`.
        `are_sockets_kept`: keep idle sockets open until `rest` is called; otherwise only inside a `keeping()` block.
        """
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
        self._open_namespaces = open_namespaces
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
        """The kernel's number of this namespace, the boot for which the number is valid, and the path at which the
        namespace was found."""
        self._routes = RouteSockets(first)
        open_namespaces.add(self)

    @property
    def sockets(self) -> int:
        """The number of open sockets in the namespace. Sockets that a call opens and closes again are not counted."""
        return self._routes.count + self._spare.count

    def is_at(self, other: HeldNamespace) -> bool:
        """Return whether both objects are one namespace. Their inode numbers are compared, which is safe while both are
        open."""
        return os.path.samestat(os.fstat(self._fd), os.fstat(other.fd))

    @property
    def is_at_its_path(self) -> bool:
        """Return whether the file at the namespace's path still leads to this namespace. Raises KernelError if this
        object is closed."""
        with self.descriptor() as fd:
            own = os.fstat(fd)
        try:
            return os.path.samestat(own, self._handed.state(self._path))
        except OSError:  # the path does not exist
            return False

    @property
    def fd(self) -> int:
        """The namespace's descriptor. A caller that keeps using it must call `descriptor` instead, because another
        thread may close it."""
        return self._fd

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` in the calling thread, which is in this namespace meanwhile, and return its result.

        Exceptions of `work` pass through. Raises KernelError: EBADF if this object is closed; ESTALE if the descriptor
        now leads to another namespace, or the caller is already in another namespace.
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
        """Run `work` with an rtnetlink socket of this namespace, and return its result. The calling thread does not
        enter the namespace, because the kernel uses the socket's namespace.

        Raises KernelError: EBADF if this object is closed, ESTALE if the caller is in another namespace.
        """
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
        """Yield the descriptor and keep it open meanwhile, even if another thread closes this object: the kernel could
        otherwise give the descriptor's number to another file. Raises KernelError (EBADF) if this object is already
        closed."""
        self._enter_use()
        try:
            yield self._fd
        finally:
            self._leave_use()

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep idle sockets open while the block runs. The kernel frees a closed socket with a delay, and a move of a
        link would have to wait for that."""
        try:
            with self._spare.keeping():
                yield
        finally:
            self._routes.close_idle(self._most_idle())

    def rest(self) -> None:
        """Close the idle sockets but keep the descriptor, because no call is expected for a long time. A socket in use
        is closed when its call returns."""
        with self._lock:
            spare = self._spare
            if not self.is_closed:  # once closed, the spare sockets stay, and close sockets that calls return
                self._spare = SpareSockets(are_kept=self._are_sockets_kept)
        spare.close()
        self._routes.close()

    def close(self) -> None:
        """Release the namespace. Closing twice does nothing.

        Never blocks in the kernel. If a call uses the namespace, the descriptor is closed only when that call returns:
        until then the call keeps the namespace alive anyway.
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
        return KernelError("enter the network namespace", errno.ESTALE, f"{self._path} is now another namespace")

    def _enter_use(self, *, even_closed: bool = False) -> SpareSockets:
        """Count a caller, so that the descriptor stays open until the caller calls `_leave_use`. Return the store of
        idle sockets that the caller may reuse. Raises KernelError (EBADF) if this object is closed, unless
        `even_closed` is True."""
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
            self._open_namespaces.discard(self)


def _cookie_of(route: RouteSocket) -> int:
    """Return the kernel's number of the socket's namespace. On an error, close the socket and raise the error."""
    try:
        return route.cookie()
    except BaseException:
        route.close()
        raise


def inside(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work` with an rtnetlink socket of the namespace, and return its result. The calling thread is in the
    namespace meanwhile.

    Raises KernelError, which names `operation`, for an OSError or a malformed message.
    """
    it = held(namespace)
    try:
        return it.ask(lambda route: it.run(lambda: work(route)))
    except (WireError, OSError) as error:
        raise _named(operation, error) from error


def asked(namespace: Namespace, operation: str, work: Callable[[RouteSocket], T]) -> T:
    """Run `work` with an rtnetlink socket of the namespace, and return its result. The calling thread does not enter
    the namespace.

    Raises KernelError, which names `operation`, for an OSError or a malformed message.
    """
    try:
        return held(namespace).ask(work)
    except (WireError, OSError) as error:
        raise _named(operation, error) from error


def _named(operation: str, error: WireError | OSError) -> KernelError:
    if isinstance(error, WireError):
        return KernelError(operation, errno.EPROTO, str(error))
    return KernelError(operation, error.errno or 0, error.strerror or "")


def held(namespace: Namespace) -> HeldNamespace:
    """Check that a namespace was opened by this module, and return it with its real type. Raises TypeError for a
    namespace of another implementation of attach.port.Kernel."""
    if not isinstance(namespace, HeldNamespace):
        raise TypeError("a namespace of another kernel")
    return namespace


def read_boot_id() -> str:
    """Return the kernel's id of this boot; "" if it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # without the file, cookies still distinguish the namespaces of one boot
