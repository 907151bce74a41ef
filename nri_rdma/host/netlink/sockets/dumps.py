"""Reads lists of objects from the kernel over any netlink protocol, as whole messages.

Used for sock_diag (lists of sockets); rtnetlink has a socket class of its own (module route_socket).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.spare_sockets import momentary

HEADER = struct.Struct("=IHHII")
NLMSG_ERROR, NLMSG_DONE = 2, 3
DUMP_INTERRUPTED = 0x10
"""The flag NLM_F_DUMP_INTR of a message: the list changed while it was sent, so an entry may be missing or listed
twice."""
ATTEMPTS = 10
"""Attempts to read a list that keeps changing. After the last attempt the error is EAGAIN, because an incomplete list
must not be used."""

T = TypeVar("T")
Ask: TypeAlias = Callable[[int, bytes], list[bytes]]

_REQUEST, _DUMP = 0x1, 0x300
_LENGTH_KIND_FLAGS = struct.Struct("=IHH")
_DATAGRAM_MAX = 1 << 16


@contextmanager
def asking(protocol: int) -> Iterator[Ask]:
    """Open a netlink socket in the calling thread's namespace. Yield a function that requests a list and returns its
    messages; the function takes the request's kind and body. Raises KernelError if the kernel refuses or does not
    answer."""
    with momentary(protocol) as sock:

        def ask(kind: int, body: bytes) -> list[bytes]:
            return read_whole(f"ask netlink for {kind}", lambda: _ask(sock, kind, body))

        yield ask


def read_whole(operation: str, read: Callable[[], tuple[list[T], bool]]) -> list[T]:
    """Call `read` until it returns a list that did not change while it was read, and return that list. All netlink
    lists are read through this function.

    `read` returns the list, and True if it changed meanwhile. Raises KernelError, which names `operation`: EAGAIN if
    the list changed at every attempt.
    """
    for _ in range(ATTEMPTS):
        found, is_interrupted = read()
        if not is_interrupted:
            return found
    raise KernelError(operation, errno.EAGAIN, f"the list changed {ATTEMPTS} times while it was read")


def messages_of(datagram: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield kind, flags and bytes (with the header) of each message in a datagram. Raises KernelError for a malformed
    message."""
    offset = 0
    while offset + HEADER.size <= len(datagram):
        length, kind, flags = _LENGTH_KIND_FLAGS.unpack_from(datagram, offset)
        if not HEADER.size <= length <= len(datagram) - offset:
            raise KernelError("read the kernel's answer", 0, f"a message claims {length} bytes")
        yield kind, flags, datagram[offset : offset + length]
        offset += (length + 3) & ~3


def _ask(sock: socket.socket, kind: int, body: bytes) -> tuple[list[bytes], bool]:
    sock.send(HEADER.pack(HEADER.size + len(body), kind, _REQUEST | _DUMP, 1, 0) + body)
    found: list[bytes] = []
    interrupted = False
    while True:
        for number, flags, message in messages_of(sock.recv(_DATAGRAM_MAX)):
            interrupted = interrupted or bool(flags & DUMP_INTERRUPTED)
            if number in {NLMSG_DONE, NLMSG_ERROR}:
                _raise_if_error(f"ask netlink for {kind}", message)
                return found, interrupted
            found.append(message)


def _raise_if_error(operation: str, message: bytes) -> None:
    error = struct.unpack_from("=i", message, HEADER.size)[0] if len(message) >= HEADER.size + 4 else 0
    if error:
        raise KernelError(operation, -error)
