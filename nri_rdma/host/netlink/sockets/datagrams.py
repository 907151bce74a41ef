"""Receives whole netlink datagrams of any length.

The kernel sends most lists in datagrams of at most 32 KiB (net/netlink/af_netlink.c). A link's message grows with its
names and addresses: 66,444 bytes with 495 alternative names, 109,172 bytes for a macvlan with 9,000 source addresses.
"""

from __future__ import annotations

import mmap
import socket
from contextlib import suppress
from typing import Final

from nri_rdma.wire import WireError

LONGEST: Final = 1 << 22
"""The longest datagram in bytes: KMALLOC_MAX_SIZE with pages of 4 KiB. The kernel cannot allocate a longer one."""
_SPARE_MAX = 2
_spare: Final[list[mmap.mmap]] = []
"""Buffers of closed sockets, kept for new sockets. Reusing them avoids page faults."""


class Datagrams:
    """Receives the datagrams of one socket, each in one system call. For one thread at a time.

    `close` releases the buffer and leaves the socket open. The buffer reserves address space; only its used pages cost
    memory.
    """

    def __init__(self, source: socket.socket) -> None:
        self._socket = source
        self._buffer = _take()

    def receive(self) -> tuple[bytes, int]:
        """Return the next datagram and the netlink port of its sender. Raises OSError if the socket fails, and
        WireError for a datagram that is too long, which is then lost."""
        length, (sender, _groups) = self._socket.recvfrom_into(self._buffer, 0, socket.MSG_TRUNC)
        if length > LONGEST:
            raise WireError(f"a datagram of {length} bytes, more than {LONGEST}")
        return self._buffer[:length], sender

    def close(self) -> None:
        """Release the buffer. Closing twice does nothing."""
        buffer, self._buffer = self._buffer, _CLOSED
        if buffer is not _CLOSED and len(_spare) < _SPARE_MAX:
            _spare.append(buffer)
        else:
            buffer.close()


def _take() -> mmap.mmap:
    try:
        return _spare.pop()
    except IndexError:
        made = mmap.mmap(-1, LONGEST, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        made.madvise(mmap.MADV_NOHUGEPAGE)  # otherwise the first byte may cost 2 MiB
    return made


_CLOSED: Final = mmap.mmap(-1, mmap.PAGESIZE)
_CLOSED.close()
