"""Network namespaces: opened, told apart, entered.

A namespace is entered by a thread of its own which starts no other (setns changes the calling thread only), and is
never entered by a thread that goes on to do something else.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from nri_rdma.attach.port import KernelError, NamespaceIdentity

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000  # include/uapi/linux/sched.h
_SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h, Linux 5.14
_libc = ctypes.CDLL(None, use_errno=True)


class HeldNamespace:
    """An open descriptor of a namespace. While it is open, the namespace and all that is in it stay alive."""

    def __init__(self, path: str, *, boot_id: str) -> None:
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise KernelError(f"open the network namespace {path}", error.errno or 0) from error
        try:
            cookie = in_namespace(self.fd, _read_cookie)
        except BaseException:
            self.close()
            raise
        self.identity = NamespaceIdentity(boot_id=boot_id, cookie=cookie, path=path)
        self.is_host = False

    def close(self) -> None:
        """Let the namespace go; closing twice does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def in_namespace(fd: int, work: Callable[[], T]) -> T:
    """What `work` returns when it runs inside the namespace of `fd`; its exceptions pass through."""
    visit = _Visit(fd, work)
    thread = threading.Thread(target=visit.run, name="netns-visit", daemon=True)
    thread.start()
    thread.join()
    return visit.result()


def read_boot_id() -> str:
    """The kernel's id of this boot; "" where the kernel has none to tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # a stand-in kernel: the cookie still tells namespaces of one boot apart


class _Visit(Generic[T]):
    def __init__(self, fd: int, work: Callable[[], T]) -> None:
        self._fd = fd
        self._work = work
        self._outcome: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            if _libc.setns(self._fd, _CLONE_NEWNET) != 0:
                raise KernelError("enter the network namespace", ctypes.get_errno())
            self._outcome.append(self._work())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that asked, nothing is lost
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._outcome[0]


def _read_cookie() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            (cookie,) = struct.unpack("=Q", probe.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
        except OSError as error:
            raise KernelError("read SO_NETNS_COOKIE (needs Linux 5.14)", error.errno or 0) from error
    return int(cookie)
