"""pyverbs with devices of the test's own: memory is real, and what is sent arrives at once, or not at all.

`installed` puts it in the place of the library. A device has ports with GID tables, and may lack RC, lose what is sent,
or refuse an operation with an errno. tests/lab/guest/test_verify.py holds the product to the real one.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from types import ModuleType
from typing import Any  # Any: of pyverbs
from unittest.mock import patch

RC, UD, WRITE, SEND, SIGNALED = 2, 4, 0, 2, 2
LOST = 12
MODULES = ("device", "pd", "mr", "cq", "qp", "wr", "addr")


@dataclass
class GIDEntry:
    gid_index: int
    value: str
    gid_type: int
    port_num: int = 1

    def gid_str(self) -> str:
        return IPv6Address(self.value).exploded


@dataclass
class PortAttr:
    state: int = 4
    phys_state: int = 5
    link_layer: int = 2
    lid: int = 0
    active_mtu: int = 3
    max_msg_sz: int = 1 << 30
    gid_tbl_len: int = 8
    pkey_tbl_len: int = 3


@dataclass
class Hca:
    """A device. `refuses` has the errno of operations: open, register, qp, connect."""

    name: str
    port: PortAttr = field(default_factory=PortAttr)
    gids: tuple[tuple[str, int], ...] = (("fe80::1", 2), ("::ffff:192.0.2.1", 2))
    pkeys: tuple[int, ...] = (0xFFFF,)
    transport_type: int = 0
    has_rc: bool = True
    loses: bool = False
    garbles: bool = False
    refuses: Mapping[str, int] = field(default_factory=dict)


class PyverbsRDMAError(Exception):
    def __init__(self, text: str, number: int) -> None:
        super().__init__(f"{text}. Errno: {number}, {os.strerror(number)}")
        self.error_code = number


HCAS: dict[str, Hca] = {}
PAIRS: dict[int, QP] = {}


@contextmanager
def installed(*hcas: Hca) -> Iterator[None]:
    """The library with these devices, for a while."""
    names = {"pyverbs": ModuleType("pyverbs"), **{f"pyverbs.{it}": sys.modules[__name__] for it in MODULES}}
    with patch.dict(sys.modules, names), patch.dict(HCAS, {it.name: it for it in hcas}, clear=True):
        yield


class Listed:
    def __init__(self, hca: Hca) -> None:
        self.name, self.transport_type = hca.name.encode(), hca.transport_type


def get_device_list() -> list[Listed]:
    return [Listed(it) for it in HCAS.values()]


class DeviceAttr:
    phys_port_cnt = 1


class Context:
    def __init__(self, name: str) -> None:
        if name not in HCAS:
            raise PyverbsRDMAError.__mro__[1](f"Failed to find device {name}")
        self.hca = HCAS[name]
        self.refuse("open")
        self.is_open = True

    def refuse(self, operation: str) -> None:
        if operation in self.hca.refuses:
            raise PyverbsRDMAError(f"Failed to {operation}", self.hca.refuses[operation])

    def query_device(self) -> DeviceAttr:
        return DeviceAttr()

    def query_port(self, _number: int) -> PortAttr:
        return self.hca.port

    def query_pkey(self, _port: int, index: int) -> int:
        pkey = self.hca.pkeys[index] if index < len(self.hca.pkeys) else 0
        return int.from_bytes(pkey.to_bytes(2, "big"), sys.byteorder)

    def query_gid_table(self, _most: int) -> list[GIDEntry]:
        return [GIDEntry(number, value, kind) for number, (value, kind) in enumerate(self.hca.gids) if value]

    def close(self) -> None:
        self.is_open = False


class PD:
    def __init__(self, context: Context) -> None:
        self.context = context


class MR:
    def __init__(self, domain: PD, length: int, _access: int) -> None:
        domain.context.refuse("register")
        self._memory = ctypes.create_string_buffer(length)
        self.buf, self.lkey, self.rkey = ctypes.addressof(self._memory), 1, 2

    def write(self, data: bytes, length: int, offset: int = 0) -> None:
        ctypes.memmove(self.buf + offset, data, length)

    def read(self, length: int, offset: int) -> bytes:
        return ctypes.string_at(self.buf + offset, length)


@dataclass
class WC:
    status: int = 0
    vendor_err: int = 0


class CQ:
    def __init__(self, context: Context, _depth: int) -> None:
        self.context = context
        self.done: list[WC] = []

    def poll(self, count: int) -> tuple[int, list[WC]]:
        found, self.done = self.done[:count], self.done[count:]
        return len(found), found


def cqe_status_to_str(status: int) -> str:
    return {LOST: "Transport retry counter exceeded"}[status]


class Values:
    """Keeps what it is made with, as ConnParam, QPCap and others do."""

    def __init__(self, *values: Any, **named: Any) -> None:
        self.values = values
        self.__dict__.update(named)


class QPCap(Values): ...


class QPInitAttr(Values): ...


class QPAttr(Values): ...


class GlobalRoute(Values): ...


class AHAttr(Values): ...


class AH(Values): ...


class GID(Values): ...


class SGE:
    def __init__(self, addr: int, length: int, _key: int) -> None:
        self.addr, self.length = addr, length


class RecvWR:
    def __init__(self, num_sge: int, sg: Sequence[SGE]) -> None:
        (self.element,) = sg[:num_sge]


class SendWR:
    def __init__(self, opcode: int, num_sge: int, sg: Sequence[SGE], send_flags: int) -> None:
        (self.element,) = sg[:num_sge]
        self.opcode, self.is_signaled = opcode, bool(send_flags & SIGNALED)
        self.remote, self.peer = 0, 0

    def set_wr_rdma(self, _key: int, address: int) -> None:
        self.remote = address

    def set_wr_ud(self, _handle: AH, number: int, _key: int) -> None:
        self.peer = number


class QP:
    def __init__(self, domain: PD, attributes: Any) -> None:
        self.context, self._queue = domain.context, attributes.scq
        self.context.refuse("qp")
        if attributes.qp_type == RC and not self.context.hca.has_rc:
            raise PyverbsRDMAError("Failed to create QP", 95)
        self.qp_num = len(PAIRS) + 1
        self._received: list[RecvWR] = []
        PAIRS[self.qp_num] = self

    def to_rts(self, attributes: Any) -> None:
        self.context.refuse("connect")
        self.attributes = attributes

    def post_recv(self, request: RecvWR) -> None:
        self._received.append(request)

    def post_send(self, request: SendWR) -> None:
        hca, source = self.context.hca, request.element
        if hca.loses:
            self._queue.done.append(WC(status=LOST))
            return
        data = ctypes.string_at(source.addr, source.length)
        data = data[::-1] if hca.garbles else data
        if request.opcode == WRITE:
            ctypes.memmove(request.remote, data, len(data))
        else:
            peer = PAIRS[request.peer]
            ctypes.memmove(peer._received.pop(0).element.addr + 40, data, len(data))
            peer._queue.done.append(WC())
        if request.is_signaled:
            self._queue.done.append(WC())
