"""Reads and detaches eBPF programs that are attached to a link by TCX (Linux 6.6). A link keeps such programs when it
moves between namespaces.

eBPF programs of TC filters need no handling, because a move removes the link's qdiscs with their filters. The system
call bpf(2) is made by ctypes, because the standard library has no wrapper for it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Final

from nri_rdma.attach.port import KernelError

log = logging.getLogger(__name__)

_CALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280}.get(os.uname().machine)
"""The number of the system call bpf(2); None on an architecture that is not listed here."""
_libc = ctypes.CDLL(None, use_errno=True)
_PROG_DETACH, _PROG_QUERY, _PROG_BY_ID, _OBJ_INFO, _LINK_BY_ID, _LINK_DETACH = 9, 16, 13, 15, 30, 34  # enum bpf_cmd
_NAME_AT, _INFO_BYTES = 64, 80  # in struct bpf_prog_info; up to and with its name
TCX_INGRESS, TCX_EGRESS = 46, 47  # enum bpf_attach_type
_DIRECTIONS = (TCX_INGRESS, TCX_EGRESS)
_MOST = 64
"""The largest number of eBPF programs that the kernel allows for one direction of a link (BPF_MPROG_MAX)."""
_QUERY = struct.Struct("=IIIIQI4xQQQQ")
_ABSENT = frozenset({errno.EINVAL, errno.ENOENT, errno.ENOSYS, errno.EOPNOTSUPP})
"""The errors with which the kernel says that it does not support TCX, or that a program is gone."""


def detach_tcx(ifindex: int, keep: Collection[int] = ()) -> None:
    """Detach all TCX programs from the link except those with the ids in `keep`. The calling thread must be in the
    link's namespace.

    Does nothing if the kernel does not support TCX. Raises KernelError if it refuses to detach a program.
    """
    for direction in _DIRECTIONS:
        for program, link in _programs(ifindex, direction):
            if program in keep:
                continue
            fd = _bpf(_LINK_BY_ID if link else _PROG_BY_ID, struct.pack("=III", link or program, 0, 0), "open eBPF")
            if fd < 0:
                continue
            own = struct.pack("=I", fd) if link else struct.pack("=IIII", ifindex, fd, direction, 0)
            try:
                _bpf(_LINK_DETACH if link else _PROG_DETACH, own, "detach an eBPF program")
            finally:
                os.close(fd)


def programs_of(ifindex: int) -> tuple[int, ...]:
    """Return the ids of the TCX programs on a link, for both directions. The calling thread must be in the link's
    namespace. Raises KernelError if the kernel refuses the query."""
    return tuple(program for direction in _DIRECTIONS for program, _ in _programs(ifindex, direction))


def names_of(programs: Iterable[int]) -> tuple[str, ...]:
    """Return the kernel's names of the programs with these ids, each name once. "" stands for a program that is gone or
    may not be queried. An error of the kernel is only logged."""
    try:
        found = [_name_of(program) for program in programs]
    except KernelError as error:
        _warn_once("names of eBPF programs on netdevs are not known", str(error))
        return ("",)
    return tuple(dict.fromkeys(found))


def read_tcx(ifindex: int) -> tuple[int, ...] | None:
    """Return the value of LinkState.tcx: the ids of the link's TCX programs; None if they cannot be read. The calling
    thread must be in the link's namespace.

    Never raises KernelError, because a daemon that may not call bpf(2) can still allocate devices.
    """
    try:
        return programs_of(ifindex)
    except KernelError as error:
        if error.errno != errno.ENODEV:
            _warn_once("eBPF programs on netdevs are not known: those of pods are not removed", str(error))
        return None


@cache
def _warn_once(what: str, error: str) -> None:
    log.warning(what, extra={"error": error})


def _name_of(program: int) -> str:
    fd = _bpf(_PROG_BY_ID, struct.pack("=III", program, 0, 0), "open eBPF")
    if fd < 0:
        return ""
    info = (ctypes.c_char * _INFO_BYTES)()
    try:
        told = _bpf(_OBJ_INFO, struct.pack("=IIQ", fd, _INFO_BYTES, ctypes.addressof(info)), "describe an eBPF program")
    finally:
        os.close(fd)
    return info.raw[_NAME_AT:].partition(b"\0")[0].decode(errors="replace") if told >= 0 else ""


def _programs(ifindex: int, direction: int) -> Iterator[tuple[int, int]]:
    """Yield the id of each program on one direction of a link, and the id of the eBPF link that holds the program (0:
    none)."""
    ids, links = (ctypes.c_uint32 * _MOST)(), (ctypes.c_uint32 * _MOST)()
    query = bytearray(
        _QUERY.pack(ifindex, direction, 0, 0, ctypes.addressof(ids), _MOST, 0, ctypes.addressof(links), 0, 0)
    )
    if _bpf(_PROG_QUERY, query, "list eBPF programs") < 0:
        return
    count = _QUERY.unpack(query)[5]
    yield from zip(ids[:count], links[:count], strict=True)


def _bpf(command: int, attributes: bytes | bytearray, operation: str) -> int:
    """Call bpf(2) and return its result; -1 if the kernel lacks the feature or the object. Raises KernelError, which
    names `operation`, for any other error."""
    if _CALL is None:
        return -1
    buffer = (ctypes.c_char * len(attributes)).from_buffer(bytearray(attributes))
    result = _libc.syscall(_CALL, command, ctypes.byref(buffer), len(attributes))
    if isinstance(attributes, bytearray):
        attributes[:] = buffer.raw
    if result >= 0:
        return int(result)
    error = ctypes.get_errno()
    if error in _ABSENT:
        return -1
    raise KernelError(operation, error)
