"""Workers inside a network namespace: a thread that has entered it, or a caller that is inside already.

Such a thread enters once, starts no other thread and does nothing else: setns changes the calling thread only, and a
thread that has been elsewhere is used for nothing more.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context, copy_context
from pathlib import Path
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar

from nri_rdma.attach.port import KernelError, NamespaceError
from nri_rdma.host.netlink.route_socket import RouteSocket

T = TypeVar("T")

_away = threading.local()
"""Has `entered` in threads that have entered another namespace than the process's."""

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)


def enter(fd: int) -> None:
    """Have the calling thread enter the namespace of a descriptor, for good. Raises NamespaceError."""
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        raise NamespaceError("enter the network namespace", ctypes.get_errno())


class Inside:
    """The sockets of a thread that is inside a namespace. For that thread only.

    There is no socket of NETLINK_RDMA here: an open one is a reference to the module ib_core, which could not be
    unloaded then (as updates of drivers do). Opening one costs 20 us.
    """

    def __init__(self) -> None:
        self._route = RouteSocket()
        self.cookie = self._route.cookie()
        """The kernel's number of this namespace."""

    @property
    def is_broken(self) -> bool:
        """Return whether an error has left the socket in doubt."""
        return self._route.is_broken

    @property
    def route(self) -> RouteSocket:
        """The thread's socket; a new one after an error that left it in doubt."""
        if self.is_broken:
            self._route.close()
            self._route = RouteSocket()
            if self._route.cookie() != self.cookie:
                raise KernelError("enter the network namespace", errno.ESTALE, "the thread is in another one")
        return self._route

    def close(self) -> None:
        """Close the socket."""
        self._route.close()


class Worker(Protocol):
    """Runs work inside a namespace, for one caller at a time."""

    @property
    def cookie(self) -> int:
        """The kernel's number of the namespace. Raises KernelError when the namespace cannot be entered."""
        ...

    def run(self, work: Callable[[Inside], T]) -> T:
        """Run `work` inside the namespace, and return its result; its exceptions pass through."""
        ...

    def lend(self, work: Callable[[RouteSocket], T]) -> T:
        """Run `work` in the caller's thread with the socket, and return its result. For rtnetlink only: the kernel goes
        by the socket's namespace, whoever sends. Its exceptions pass through."""
        ...

    def end(self) -> None:
        """Announce that no further work will come; does not wait."""
        ...

    def join(self) -> None:
        """Wait for the end of the worker, after `end`."""
        ...


class Insider:
    """A thread that enters a namespace, and runs work there for one caller at a time. Callers do not wait for the
    entry: the first result, or the error, comes later instead. The caller's span is the thread's meanwhile."""

    def __init__(self) -> None:
        self._place: SimpleQueue[tuple[int, Context] | None] = SimpleQueue()
        self._jobs: SimpleQueue[_Job[object] | None] = SimpleQueue()
        self._entered: Future[Inside] = Future()
        self._thread = threading.Thread(target=self._serve, name="netns-spare", daemon=True)
        self._thread.start()

    def enter(self, fd: int) -> None:
        """Have the thread enter the namespace of a descriptor; once."""
        self._thread.name = "netns"
        self._place.put((fd, copy_context()))

    def dismiss(self) -> None:
        """End the thread without an entry, and wait for its end."""
        self._place.put(None)
        self.join()

    @property
    def cookie(self) -> int:
        """The kernel's number of the namespace, once the thread is inside. Raises KernelError when the thread cannot
        enter it."""
        return self._entered.result().cookie

    def run(self, work: Callable[[Inside], T]) -> T:
        """Run `work` inside the namespace, and return its result; its exceptions pass through. Raises KernelError when
        the thread cannot enter it."""
        self._entered.result()  # else nobody would come to the job
        job = _Job(work)
        self._jobs.put(job)  # type: ignore[arg-type]  # a job gives its result to its own caller, whatever that is
        return job.wait()

    def lend(self, work: Callable[[RouteSocket], T]) -> T:
        """Run `work` in the caller's thread with the socket, and return its result: the thread inside has nothing to do
        meanwhile."""
        inside = self._entered.result()
        if inside.is_broken:  # a new one has to be opened inside
            return self.run(lambda inside: work(inside.route))
        return work(inside.route)

    def end(self) -> None:
        """End the thread when it is idle; does not wait for its end."""
        self._jobs.put(None)

    def join(self) -> None:
        """Wait for the thread's end, after `end`."""
        self._thread.join()

    def _serve(self) -> None:
        place = self._place.get()
        if place is None:
            return
        fd, context = place
        try:
            inside = context.run(_open_inside, fd)
        except BaseException as error:  # noqa: BLE001 - handed to the threads that ask, nothing is lost
            self._entered.set_exception(error)
            return
        del place, context  # with the caller's span: this thread may live for long
        self._entered.set_result(inside)
        while (job := self._jobs.get()) is not None:
            job.do(inside)
            del job  # with what its caller gave and got: this thread may be idle for long
        inside.close()


def _open_inside(fd: int) -> Inside:
    """Have the calling thread enter the namespace of a descriptor, and open its socket."""
    _away.entered = True
    enter(fd)
    return Inside()


class Spare:
    """Keeps one thread ready that has no namespace yet, once there has been any: starting a thread takes 0.3 ms, and a
    sandbox would wait for that. Safe for use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ready: list[Insider] = []

    def enter(self, fd: int) -> Insider:
        """Return a thread that enters the namespace of a descriptor."""
        with self._lock:
            insider = self._ready.pop() if self._ready else None
        insider = insider or Insider()
        insider.enter(fd)
        return insider

    def refill(self) -> None:
        """Start a thread that is ready for the next namespace. Call it at a moment when no caller waits."""
        with self._lock:
            if not self._ready:
                self._ready.append(Insider())

    def dismiss(self) -> None:
        """End the thread that is ready."""
        with self._lock:
            dismissed, self._ready = self._ready, []
        for insider in dismissed:
            insider.dismiss()


class Resident:
    """Runs work in the caller's thread, for the namespace of the process itself, which needs no entry. Raises
    KernelError in a thread that has entered another namespace."""

    def __init__(self) -> None:
        _refuse_away()
        self._inside = Inside()

    @property
    def cookie(self) -> int:
        """The kernel's number of the namespace."""
        return self._inside.cookie

    def run(self, work: Callable[[Inside], T]) -> T:
        """Run `work`, and return its result; its exceptions pass through."""
        _refuse_away()
        return work(self._inside)

    def lend(self, work: Callable[[RouteSocket], T]) -> T:
        """Run `work` with the socket alone, and return its result."""
        return work(self._inside.route)

    def end(self) -> None:
        """Close the socket."""
        self._inside.close()

    def join(self) -> None:
        """Return at once: there is no thread to wait for."""


def is_own(fd: int) -> bool:
    """Return whether a descriptor is that of this process's own namespace."""
    return os.path.samestat(os.fstat(fd), Path("/proc/self/ns/net").stat())


def _refuse_away() -> None:
    if getattr(_away, "entered", False):
        raise KernelError("ask the process's network namespace", errno.ESTALE, "the thread is in another one")


class _Job(Generic[T]):
    """Work, and its outcome."""

    def __init__(self, work: Callable[[Inside], T]) -> None:
        self._work = work
        self._context = copy_context()
        self._outcome: SimpleQueue[tuple[list[T], BaseException | None]] = SimpleQueue()

    def do(self, inside: Inside) -> None:
        try:
            self._outcome.put(([self._context.run(self._work, inside)], None))
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked, nothing is lost
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._outcome.put(([], error))

    def wait(self) -> T:
        result, error = self._outcome.get()
        if error is not None:
            raise error
        return result[0]
