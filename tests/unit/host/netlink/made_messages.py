"""Netlink messages made by hand, as include/uapi/linux/netlink.h and rtnetlink.h lay them out. Nothing of the product
makes them."""

import errno
import struct
from collections.abc import Callable

from nri_rdma.attach.port import KernelError
from nri_rdma.host.netlink.sockets.route_socket import RouteSocket

DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)
"""The end of a list, with the number 1."""


def message(kind: int, body: bytes, flags: int = 2, sequence: int = 1) -> bytes:
    """struct nlmsghdr and what follows it."""
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


def error(code: int, sequence: int = 1) -> bytes:
    """A refusal (NLMSG_ERROR), capped: the error and the header of what was asked."""
    return message(2, struct.pack("=i", -code) + struct.pack("=IHHII", 16, 16, 5, sequence, 0), 0x100, sequence)


def attribute(kind: int, value: bytes) -> bytes:
    """struct rtattr, its value, and zeros up to a multiple of four."""
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def u32(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack("=I", value))


def link(ifindex: int, *attributes: bytes, flags: int = 0) -> bytes:
    """RTM_NEWLINK: struct ifinfomsg (family, pad, type, index, flags, change), then attributes."""
    return message(16, struct.pack("=BxHiII", 0, 1, ifindex, flags, 0) + b"".join(attributes))


def address(family: int, prefix: int, ifindex: int, *attributes: bytes, flags: int = 0, scope: int = 0) -> bytes:
    """RTM_NEWADDR: struct ifaddrmsg (family, prefixlen, flags, scope, index), then attributes."""
    return message(20, struct.pack("=BBBBI", family, prefix, flags, scope, ifindex) + b"".join(attributes))


def neighbour(family: int, ifindex: int, *attributes: bytes, state: int = 0x80, flags: int = 0) -> bytes:
    """RTM_NEWNEIGH: struct ndmsg (family, pads, ifindex, state, flags, type), then attributes."""
    return message(28, struct.pack("=BxxxiHBB", family, ifindex, state, flags, 1) + b"".join(attributes))


def route(
    family: int,
    prefix: int,
    *attributes: bytes,
    table: int = 254,
    proto: int = 3,
    scope: int = 0,
    kind: int = 1,
    flags: int = 0,
) -> bytes:
    """RTM_NEWROUTE: struct rtmsg (family, dst_len, src_len, tos, table, protocol, scope, type, flags)."""
    header = struct.pack("=BBBBBBBBI", family, prefix, 0, 0, table, proto, scope, kind, flags)
    return message(24, header + b"".join(attributes))


class Scripted(RouteSocket):
    """A kernel whose answers are these messages, by the kind and the body of the request. It has no socket."""

    def __init__(self, answers: dict[int, list[bytes]] | Callable[[int, bytes], list[bytes]]) -> None:
        self._answers = answers
        self.asked: list[tuple[int, bytes]] = []

    def dump(self, kind: int, body: bytes, operation: str, keep: Callable[[bytes], bool] | None = None) -> list[bytes]:
        self.asked.append((kind, body))
        found = self._answers.get(kind, []) if isinstance(self._answers, dict) else self._answers(kind, body)
        return [it for it in found if keep is None or keep(it)]

    def ask(self, kind: int, body: bytes, operation: str) -> bytes:
        found = self.dump(kind, body, operation)
        if not found:
            raise KernelError(operation, errno.ENODEV)
        return found[0]
