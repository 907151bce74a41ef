"""A socket for rtnetlink that sends requests and reads lists as bytes.

Several requests go in one datagram. The kernel handles them in order, and continues after a refused one
(netlink_rcv_skb). pyroute2 is not used here, because it opens an event loop for each socket and decodes every
attribute, which takes a tenth of a millisecond per message.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.datagrams import Datagrams
from nri_rdma.host.netlink.sockets.dumps import read_whole
from nri_rdma.host.netlink.sockets.patience import PATIENCE_S, be_patient
from nri_rdma.wire import WireError
from nri_rdma.wire.netlink import (
    ACK,
    DONE,
    DUMP,
    DUMP_INTERRUPTED,
    ERROR,
    Message,
    encode_request,
    read_answer,
    read_messages,
)

REQUESTS_MAX = 32
"""The most requests in one datagram, so that their answers fit any receive buffer. Further requests go into the next
datagram."""

_OF_LINKS = frozenset({16, 17, 108, 109})  # RTM_NEWLINK, RTM_DELLINK, RTM_NEWLINKPROP, RTM_DELLINKPROP
"""The kinds of requests that call a driver. If the driver was interrupted (EINTR), the kernel sends no answer at all
(netlink_rcv_skb)."""
_SOL_NETLINK, _CAP_ACK, _EXT_ACK, _STRICT = 270, 10, 11, 12  # include/uapi/linux/netlink.h
_SO_NETNS_COOKIE = 71  # include/uapi/asm-generic/socket.h, Linux 5.14


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An rtnetlink request that changes something. `operation` names the request in errors. An errno in `tolerate`
    counts as success."""

    kind: int
    body: bytes
    operation: str
    flags: int = 0
    tolerate: frozenset[int] = frozenset()


class RouteSocket:
    """An rtnetlink socket of the namespace in which it was created, for one thread at a time. Every method raises
    KernelError if the kernel refuses a request or does not answer.

    `is_broken` becomes True after an error of the socket itself. The socket must then be closed, because late answers
    may still arrive.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self._sequence = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
            for option in (_CAP_ACK, _EXT_ACK, _STRICT):
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            be_patient(self._socket)
            self._socket.bind((0, 0))
        except OSError as error:
            raise KernelError("open a socket to rtnetlink", error.errno or 0) from error
        self._datagrams = Datagrams(self._socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket. Closing twice does nothing."""
        self._socket.close()
        self._datagrams.close()

    def cookie(self) -> int:
        """Return the kernel's number of the socket's namespace, which is unique until the next boot."""
        try:
            (cookie,) = struct.unpack("=Q", self._socket.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8))
        except OSError as error:
            raise KernelError("read SO_NETNS_COOKIE (needs Linux 5.14)", error.errno or 0) from error
        return int(cookie)

    def do(self, *requests: Request) -> None:
        """Send all requests in order, even after a refusal. Raises KernelError for the first refused request."""
        errors = self.try_all(requests)
        if errors:
            raise errors[min(errors)]

    def try_all(self, requests: Sequence[Request]) -> dict[int, KernelError]:
        """Send all requests in order, even after a refusal, and return the error of each refused request by its
        position. Raises KernelError if no answer comes."""
        errors: dict[int, KernelError] = {}
        for start in range(0, len(requests), REQUESTS_MAX):
            refused = self._do(requests[start : start + REQUESTS_MAX])
            errors |= {start + position: error for position, error in refused.items()}
        return errors

    def ask(self, kind: int, body: bytes, operation: str) -> bytes:
        """Send a request about one object and return the kernel's whole message. `kind` is the request's message type
        (RTM_*), and `operation` names the request in errors."""
        self._sequence += 1
        self._send(operation, encode_request(kind, 0, self._sequence, body))
        while True:
            for message in self._receive(operation):
                if message.sequence != self._sequence:
                    continue
                if message.kind != ERROR:
                    return message.whole
                answer = read_answer(message)
                raise KernelError(operation, answer.errno or errno.EPROTO, answer.reason or "an answer without content")

    def dump(self, kind: int, body: bytes, operation: str, keep: Callable[[bytes], bool] | None = None) -> list[bytes]:
        """Request a list and return its messages, with their headers. `kind` is the request's message type (RTM_*), and
        `operation` names the request in errors. `keep` selects messages; None: return all."""
        return read_whole(operation, lambda: self._list(operation, kind, body, keep))

    def _do(self, requests: Sequence[Request]) -> dict[int, KernelError]:
        """Send the requests in one datagram and return the errors by position.

        The kernel reports each refused request. It confirms a successful one only if the request asks for that; here
        the last request and requests that change links do.
        """
        first, last = self._sequence + 1, self._sequence + len(requests)
        self._sequence = last
        unsure = {number for number, it in enumerate(requests, first) if it.kind in _OF_LINKS or number == last}
        datagram = b"".join(
            encode_request(it.kind, it.flags | (ACK if number in unsure else 0), number, it.body)
            for number, it in enumerate(requests, first)
        )
        errors: dict[int, KernelError] = {}
        operation = requests[0].operation
        self._send(operation, datagram)
        while True:
            for message in self._receive(operation):
                if message.kind != ERROR or not first <= message.sequence <= last:
                    continue  # a late answer to an earlier call
                position, answer = message.sequence - first, read_answer(message)
                request = requests[position]
                if answer.errno not in {0, *request.tolerate}:
                    errors[position] = KernelError(request.operation, answer.errno, answer.reason)
                unsure.discard(message.sequence)
                if message.sequence == last:
                    return errors | {it - first: _unanswered(requests[it - first]) for it in unsure}

    def _list(
        self, operation: str, kind: int, body: bytes, keep: Callable[[bytes], bool] | None
    ) -> tuple[list[bytes], bool]:
        self._sequence += 1
        self._send(operation, encode_request(kind, DUMP, self._sequence, body))
        found: list[bytes] = []
        is_interrupted = False
        while True:
            for message in self._receive(operation):
                if message.sequence != self._sequence:
                    continue
                is_interrupted = is_interrupted or bool(message.flags & DUMP_INTERRUPTED)
                if message.kind in {DONE, ERROR}:
                    answer = read_answer(message)
                    if answer.errno:
                        raise KernelError(operation, answer.errno, answer.reason)
                    return found, is_interrupted
                if keep is None or keep(message.whole):
                    found.append(message.whole)

    def _send(self, operation: str, datagram: bytes) -> None:
        try:
            self._socket.send(datagram)
        except OSError as error:
            self.is_broken = True
            raise KernelError(operation, error.errno or 0, error.strerror or "") from error

    def _receive(self, operation: str) -> list[Message]:
        try:
            return list(read_messages(self._datagrams.receive()[0]))
        except BlockingIOError as error:
            self.is_broken = True
            raise KernelError(operation, errno.ETIMEDOUT, f"no answer in {PATIENCE_S} s") from error
        except OSError as error:
            self.is_broken = True
            raise KernelError(operation, error.errno or 0, error.strerror or "") from error
        except WireError as error:
            self.is_broken = True
            raise KernelError(operation, errno.EPROTO, str(error)) from error


def _unanswered(request: Request) -> KernelError:
    return KernelError(request.operation, errno.EINTR, "the kernel gave no answer")
