"""nldev, the RDMA subsystem's part of NETLINK_RDMA: requests as bytes, the kernel's replies as values.

A request has its bytes and the reader of its reply; the class Replies reads the reply datagram by datagram. Messages
with other sequence numbers and unknown attributes are skipped, because newer kernels add some.
host/netlink/rdma/subsystem.py handles sockets and namespaces, and interprets errno.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, TypeVar

from nri_rdma.model.device import CharKind, RdmaNetns
from nri_rdma.model.nldev import (
    CharNumber,
    ObjectKind,
    RdmaDeviceState,
    RdmaObject,
    RdmaPortState,
)
from nri_rdma.wire.error import WireError

T = TypeVar("T")

NETLINK_RDMA: Final = 20  # include/uapi/linux/netlink.h
RESULTS_MAX: Final = 1 << 20
"""The greatest number of results of one request; a longer reply is broken. No node has so many objects: adapters offer
at most 2^18 queue pairs."""

_CLIENT = 5  # RDMA_NL_NLDEV; a message type is client << 10 | command
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
_ATTRIBUTE = struct.Struct("=HH")  # struct nlattr
_ATTRIBUTE_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER
_REQUEST, _ACK, _DUMP = 0x1, 0x4, 0x300
_DUMP_INTERRUPTED = 0x10  # NLM_F_DUMP_INTR
_NLMSG_ERROR, _NLMSG_DONE, _NLMSG_OVERRUN = 2, 3, 4
_U8, _U32, _U64, _S32 = struct.Struct("=B"), struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=i")


class NldevCommand(IntEnum):
    """RDMA_NLDEV_CMD_*, include/uapi/rdma/rdma_netlink.h (Linux 7.2)."""

    GET = 1
    SET = 2
    PORT_GET = 5
    SYS_GET = 6
    RES_QP_GET = 10
    RES_CM_ID_GET = 11
    RES_MR_GET = 13
    GET_CHARDEV = 15
    RES_CTX_GET = 22


class Attribute(IntEnum):
    """RDMA_NLDEV_ATTR_*, RDMA_NLDEV_SYS_ATTR_* and RDMA_NLDEV_NET_NS_FD of include/uapi/rdma/rdma_netlink.h. A comment
    gives the type of each."""

    DEV_INDEX = 1  # u32
    DEV_NAME = 2  # string
    PORT_INDEX = 3  # u32
    NODE_GUID = 6  # u64, host byte order
    RES_QP = 19  # nested table
    RES_QP_ENTRY = 20  # nested
    RES_PID = 28  # u32
    RES_KERN_NAME = 29  # string
    RES_CM_ID = 30  # nested table
    RES_CM_ID_ENTRY = 31  # nested
    RES_MR = 40  # nested table
    RES_MR_ENTRY = 41  # nested
    NDEV_INDEX = 50  # u32
    NDEV_NAME = 51  # string
    NETNS_MODE = 66  # u8: 1 is shared
    NET_NS_FD = 68  # u32
    CHARDEV_TYPE = 69  # string
    CHARDEV_NAME = 70  # string
    CHARDEV = 72  # u64
    RES_CTX = 86  # nested table
    RES_CTX_ENTRY = 87  # nested


@dataclass(frozen=True, slots=True, kw_only=True)
class NldevRequest(Generic[T]):
    """A request to the RDMA subsystem: its bytes, and the function that reads its reply. A request that changes
    something has an empty reply."""

    command: NldevCommand
    attributes: bytes
    is_dump: bool
    read: Callable[[NldevFields], T]

    def encode(self, sequence: int) -> bytes:
        """Return the message to send, with this sequence number."""
        kind = _CLIENT << 10 | self.command
        flags = _REQUEST | (_DUMP if self.is_dump else _ACK)
        return _HEADER.pack(_HEADER.size + len(self.attributes), kind, flags, sequence, 0) + self.attributes


def get_devices() -> NldevRequest[RdmaDeviceState]:
    """Return the request for all devices in the socket's namespace."""
    return _request(NldevCommand.GET, _read_device, is_dump=True)


def get_ports(index: int) -> NldevRequest[RdmaPortState]:
    """Return the request for all ports of a device."""
    return _request(NldevCommand.PORT_GET, _read_port, _u32(Attribute.DEV_INDEX, index), is_dump=True)


def get_char_device(kind: CharKind, index: int | None, port: int | None) -> NldevRequest[CharNumber]:
    """Return the request for a character device. The kind uverbs needs the index of a device, umad and issm also a
    port; rdma_cm needs neither."""
    place = [] if index is None else [_u32(Attribute.DEV_INDEX, index)]
    place += [] if port is None else [_u32(Attribute.PORT_INDEX, port)]
    return _request(NldevCommand.GET_CHARDEV, _read_char, *place, _string(Attribute.CHARDEV_TYPE, kind.value))


def get_netns_mode() -> NldevRequest[RdmaNetns]:
    """Return the request for the netns mode of the RDMA subsystem."""
    return _request(NldevCommand.SYS_GET, _read_netns_mode)


def set_namespace(index: int, fd: int) -> NldevRequest[None]:
    """Return the request that moves a device into the network namespace on which `fd` is open."""
    return _request(NldevCommand.SET, _read_nothing, _u32(Attribute.DEV_INDEX, index), _u32(Attribute.NET_NS_FD, fd))


def set_name(index: int, name: str) -> NldevRequest[None]:
    """Return the request that renames a device."""
    return _request(
        NldevCommand.SET, _read_nothing, _u32(Attribute.DEV_INDEX, index), _string(Attribute.DEV_NAME, name)
    )


def get_objects(kind: ObjectKind, index: int) -> NldevRequest[tuple[RdmaObject, ...]]:
    """Return the request for all objects of one kind on a device, with their creators."""
    command, table, entry = _OBJECTS[kind]

    def read(fields: NldevFields) -> tuple[RdmaObject, ...]:
        return tuple(_read_object(kind, item) for item in fields.table(table, entry))

    return _request(command, read, _u32(Attribute.DEV_INDEX, index), is_dump=True)


def get_kernel_objects(kind: ObjectKind, index: int) -> NldevRequest[tuple[RdmaObject, ...]]:
    """Return the request for the objects of one kind that a part of the kernel created. Objects of processes are
    skipped without decoding, because a busy node has hundreds of thousands of them."""
    command, table, entry = _OBJECTS[kind]

    def read(fields: NldevFields) -> tuple[RdmaObject, ...]:
        likely = (NldevFields(item) for item in fields.entries(table, entry) if _KERN_NAME in item)
        return tuple(found for item in likely if (found := _read_object(kind, item)).kernel_user)

    return _request(command, read, _u32(Attribute.DEV_INDEX, index), is_dump=True)


class Replies(Generic[T]):
    """The reply to one request. `results` grows until `done`; then `errno` is 0 on success, and otherwise says why the
    results are not complete."""

    def __init__(self, request: NldevRequest[T], sequence: int) -> None:
        self._request = request
        self._sequence = sequence
        self.results: list[T] = []
        self.done = False
        self.errno = 0
        self.is_interrupted = False
        """Whether the list changed while the kernel sent it, so that an entry may be missing."""

    def receive_data(self, datagram: bytes) -> None:
        """Read one datagram of the reply. Raises WireError if it breaks the protocol; the results must not be used
        then."""
        for kind, flags, sequence, payload in _messages(datagram):
            if sequence != self._sequence or self.done:
                continue
            self.is_interrupted = self.is_interrupted or bool(flags & _DUMP_INTERRUPTED)
            if kind in {_NLMSG_ERROR, _NLMSG_DONE}:
                self.done, self.errno = True, _errno(kind, payload)
            elif kind >> 10 == _CLIENT:  # by client only: the kernel answers PORT_GET of one port as GET
                self._take(payload)

    def _take(self, payload: bytes) -> None:
        if len(self.results) >= RESULTS_MAX:
            raise WireError(f"more than {RESULTS_MAX} answers to one {self._request.command.name}")
        self.results.append(self._request.read(NldevFields(payload)))


class NldevFields:
    """The attributes of a message or of a nested table. Each method raises WireError if the value has the wrong size,
    or if the attribute is missing and must be there."""

    __slots__ = ("_items",)

    def __init__(self, payload: bytes) -> None:
        self._items = tuple(_attributes(payload))

    def number(self, attribute: Attribute, size: struct.Struct) -> int:
        """Return the value of an attribute as an unsigned number."""
        value = self.optional(attribute, size)
        if value is None:
            raise WireError(f"a reply lacks {attribute.name}")
        return value

    def optional(self, attribute: Attribute, size: struct.Struct) -> int | None:
        """Return the value of an attribute as an unsigned number; None if the attribute is missing."""
        data = self._first(attribute)
        if data is None:
            return None
        if len(data) != size.size:
            raise WireError(f"{attribute.name} of {len(data)} bytes instead of {size.size}")
        return int(size.unpack(data)[0])

    def text(self, attribute: Attribute, default: str | None = None) -> str:
        """Return the value of an attribute as text, up to its first NUL; `default` if the attribute is missing."""
        data = self._first(attribute)
        if data is not None:
            return data.partition(b"\0")[0].decode(errors="replace")
        if default is None:
            raise WireError(f"a reply lacks {attribute.name}")
        return default

    def table(self, table: Attribute, entry: Attribute) -> Iterator[NldevFields]:
        """Return the decoded entries of a nested table; none if the table is missing."""
        return map(NldevFields, self.entries(table, entry))

    def entries(self, table: Attribute, entry: Attribute) -> Iterator[bytes]:
        """Return the entries of a nested table as bytes."""
        return (data for kind, data in _attributes(self._first(table) or b"") if kind == entry)

    def _first(self, attribute: Attribute) -> bytes | None:
        return next((data for kind, data in self._items if kind == attribute), None)


_KERN_NAME = struct.pack("=H", Attribute.RES_KERN_NAME)
"""The number, as bytes, of an attribute that only objects of the kernel have. Other entries can contain these bytes by
chance."""

_OBJECTS = {
    ObjectKind.QP: (NldevCommand.RES_QP_GET, Attribute.RES_QP, Attribute.RES_QP_ENTRY),
    ObjectKind.CM_ID: (NldevCommand.RES_CM_ID_GET, Attribute.RES_CM_ID, Attribute.RES_CM_ID_ENTRY),
    ObjectKind.MR: (NldevCommand.RES_MR_GET, Attribute.RES_MR, Attribute.RES_MR_ENTRY),
    ObjectKind.CTX: (NldevCommand.RES_CTX_GET, Attribute.RES_CTX, Attribute.RES_CTX_ENTRY),
}


def _read_device(fields: NldevFields) -> RdmaDeviceState:
    guid = f"{fields.number(Attribute.NODE_GUID, _U64):016x}"
    return RdmaDeviceState(
        index=fields.number(Attribute.DEV_INDEX, _U32),
        name=fields.text(Attribute.DEV_NAME),
        node_guid=":".join(guid[start : start + 4] for start in range(0, 16, 4)),
    )


def _read_port(fields: NldevFields) -> RdmaPortState:
    return RdmaPortState(
        netdev_index=fields.optional(Attribute.NDEV_INDEX, _U32),
        netdev_name=fields.text(Attribute.NDEV_NAME, ""),
    )


def _read_char(fields: NldevFields) -> CharNumber:
    number = fields.number(Attribute.CHARDEV, _U64)
    return CharNumber(
        name=fields.text(Attribute.CHARDEV_NAME),
        # huge_encode_dev(), include/linux/kdev_t.h: 12 bits of major between the 8 low and 12 high ones of minor
        major=number >> 8 & 0xFFF,
        minor=number & 0xFF | number >> 12 & 0xFFF00,
    )


def _read_netns_mode(fields: NldevFields) -> RdmaNetns:
    return RdmaNetns.SHARED if fields.number(Attribute.NETNS_MODE, _U8) else RdmaNetns.EXCLUSIVE


def _read_object(kind: ObjectKind, fields: NldevFields) -> RdmaObject:
    return RdmaObject(
        kind=kind,
        kernel_user=fields.text(Attribute.RES_KERN_NAME, ""),
        pid=fields.optional(Attribute.RES_PID, _U32),
    )


def _read_nothing(_fields: NldevFields) -> None:
    """Return None for the reply to a change, which is empty."""


def _request(
    command: NldevCommand, read: Callable[[NldevFields], T], *attributes: bytes, is_dump: bool = False
) -> NldevRequest[T]:
    return NldevRequest(command=command, attributes=b"".join(attributes), is_dump=is_dump, read=read)


def _u32(attribute: Attribute, value: int) -> bytes:
    if not 0 <= value <= 0xFFFFFFFF:
        raise WireError(f"{attribute.name} cannot be {value}")
    return _pack(attribute, _U32.pack(value))


def _string(attribute: Attribute, value: str) -> bytes:
    return _pack(attribute, value.encode() + b"\0")


def _pack(attribute: Attribute, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), attribute) + value + b"\0" * (-len(value) % 4)


def _messages(datagram: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield type, flags, sequence and payload of each message."""
    position = 0
    while position < len(datagram):
        if position + _HEADER.size > len(datagram):
            raise WireError(f"{len(datagram) - position} bytes cannot be a netlink message")
        length, kind, flags, sequence, _port = _HEADER.unpack_from(datagram, position)
        if not _HEADER.size <= length <= len(datagram) - position:
            raise WireError(f"a netlink message claims {length} bytes of {len(datagram) - position}")
        if kind == _NLMSG_OVERRUN:
            raise WireError("the kernel lost messages of this socket")
        yield kind, flags, sequence, datagram[position + _HEADER.size : position + length]
        position += length + 3 & ~3


def _attributes(payload: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(payload):
        if position + _ATTRIBUTE.size > len(payload):
            raise WireError(f"{len(payload) - position} bytes cannot be an attribute")
        length, kind = _ATTRIBUTE.unpack_from(payload, position)
        if not _ATTRIBUTE.size <= length <= len(payload) - position:
            raise WireError(f"attribute {kind & _ATTRIBUTE_MASK} claims {length} bytes of {len(payload) - position}")
        yield kind & _ATTRIBUTE_MASK, payload[position + _ATTRIBUTE.size : position + length]
        position += length + 3 & ~3


def _errno(kind: int, payload: bytes) -> int:
    """Return the positive errno in a message of kind ERROR or DONE; 0 means success. At the end of a list the kernel
    may leave errno out; the result is then 0."""
    if len(payload) < _S32.size:
        if kind == _NLMSG_DONE:
            return 0
        raise WireError("an error message without an errno")
    return abs(int(_S32.unpack_from(payload)[0]))
