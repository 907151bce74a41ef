"""Netlink messages and their attributes: bytes to values and back, without I/O (netlink(7))."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from nri_rdma.wire.error import WireError

REQUEST: Final = 0x1  # NLM_F_*, include/uapi/linux/netlink.h
ACK: Final = 0x4
REPLACE: Final = 0x100
"""A flag of a request that adds an object: an existing object is replaced."""
EXCL: Final = 0x200
DUMP: Final = 0x300
CREATE: Final = 0x400
APPEND: Final = 0x800
NESTED: Final = 0x8000
"""NLA_F_NESTED, a flag in an attribute's number."""
DUMP_INTERRUPTED: Final = 0x10
"""NLM_F_DUMP_INTR: the list changed while it was sent, so an entry may be missing or repeated."""
ERROR: Final = 2
DONE: Final = 3

HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_KIND_MASK = 0x3FFF
_CODE, _U32 = struct.Struct("=i"), struct.Struct("=I")
_CAPPED, _WITH_ATTRIBUTES = 0x100, 0x200  # NLM_F_CAPPED, NLM_F_ACK_TLVS
_REASON = 1  # NLMSGERR_ATTR_MSG


class Message(NamedTuple):
    """A netlink message; `whole` has all its bytes, including the header."""

    kind: int
    flags: int
    sequence: int
    whole: bytes


class Answer(NamedTuple):
    """The result of a request: the kernel's errno (0 on success) and its message (`reason`, "" if there is none)."""

    errno: int
    reason: str


def encode_request(kind: int, flags: int, sequence: int, body: bytes) -> bytes:
    """Encode a request, padded so that another one can follow in the same datagram."""
    whole = HEADER.pack(HEADER.size + len(body), kind, flags | REQUEST, sequence, 0) + body
    return whole + b"\0" * (-len(whole) % 4)


def encode_attribute(kind: int, value: bytes) -> bytes:
    """Encode an attribute with its padding."""
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + b"\0" * (-len(value) % 4)


def encode_u32(kind: int, value: int) -> bytes:
    """Encode an attribute whose value is a 32-bit number."""
    return encode_attribute(kind, _U32.pack(value))


def read_messages(datagram: bytes) -> Iterator[Message]:
    """Yield the messages in a datagram. Raises WireError for a broken one."""
    position, end = 0, len(datagram)
    while position < end:
        if end - position < HEADER.size:
            raise WireError(f"{end - position} bytes cannot be a netlink message")
        length, kind, flags, sequence, _port = HEADER.unpack_from(datagram, position)
        if not HEADER.size <= length <= end - position:
            raise WireError(f"a netlink message claims {length} bytes of {end - position}")
        yield Message(kind, flags, sequence, datagram[position : position + length])
        position += (length + 3) & ~3


def read_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and value of each attribute; flags for nesting and byte order are removed from the number. Raises
    WireError if an attribute is longer than `data`."""
    position, end = 0, len(data)
    while position + _ATTRIBUTE.size <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if not _ATTRIBUTE.size <= length <= end - position:
            raise WireError(f"attribute {kind & _KIND_MASK} claims {length} bytes of {end - position}")
        yield kind & _KIND_MASK, data[position + _ATTRIBUTE.size : position + length]
        position += (length + 3) & ~3


def read_answer(message: Message) -> Answer:
    """Return the result in a message of kind ERROR or DONE. Raises WireError if the message breaks the protocol."""
    end = HEADER.size + _CODE.size
    if len(message.whole) < end:
        return Answer(0, "")  # DONE of an empty list
    (code,) = _CODE.unpack_from(message.whole, HEADER.size)
    if not message.flags & _WITH_ATTRIBUTES:
        return Answer(-code, "")
    if message.kind == ERROR:
        end += HEADER.size if message.flags & _CAPPED or not code else _repeated_bytes(message.whole)
    told = dict(read_attributes(message.whole[end:]))
    return Answer(-code, told.get(_REASON, b"").partition(b"\0")[0].decode(errors="replace"))


def _repeated_bytes(answer: bytes) -> int:
    """Return how many bytes of the request the error message repeats. The kernel repeats the request unless the socket
    asked it not to."""
    if len(answer) < HEADER.size + _CODE.size + 4:
        raise WireError(f"an error message of {len(answer)} bytes is too short")
    (length,) = _U32.unpack_from(answer, HEADER.size + _CODE.size)
    return int((length + 3) & ~3)
