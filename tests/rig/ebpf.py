"""eBPF programs on links, as an administrator's tools attach them; bpf(2) as its manual page has it."""

import ctypes
import os
import struct

_CALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280}
_PROG_LOAD, _OBJ_PIN, _PROG_ATTACH, _PROG_DETACH, _PROG_QUERY, _LINK_CREATE = 5, 6, 8, 9, 16, 28  # enum bpf_cmd
TCX_INGRESS, TCX_EGRESS = 46, 47  # enum bpf_attach_type
_SCHED_CLS = 3
_PASS = struct.pack("=BBhiBBhi", 0xB7, 0, 0, 0, 0x95, 0, 0, 0)
"""r0 = 0; exit"""
_MOST = 64


def bpf(command: int, attributes: bytes) -> int:
    """Make the call. Raises OSError."""
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_CALL[os.uname().machine], command, buffer, len(attributes)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def load(name: str = "") -> int:
    """Return the descriptor of a program that lets every packet pass."""
    code, licence = ctypes.create_string_buffer(_PASS, len(_PASS)), ctypes.create_string_buffer(b"GPL")
    own = struct.pack("=IIQQIIQII", _SCHED_CLS, 2, ctypes.addressof(code), ctypes.addressof(licence), 0, 0, 0, 0, 0)
    return bpf(_PROG_LOAD, own + name.encode().ljust(16, b"\0"))


def pin(program: int, path: str) -> None:
    """Give the program a name in a mounted bpffs."""
    name = ctypes.create_string_buffer(path.encode())
    bpf(_OBJ_PIN, struct.pack("=QII", ctypes.addressof(name), program, 0))


def attach_tcx(ifindex: int, program: int) -> None:
    """Attach it to what arrives at a link of this thread's namespace. EINVAL: the kernel has no TCX."""
    bpf(_PROG_ATTACH, struct.pack("=IIII", ifindex, program, TCX_INGRESS, 0))


def detach_tcx(ifindex: int, program: int) -> None:
    """Detach it from what arrives at a link."""
    bpf(_PROG_DETACH, struct.pack("=IIII", ifindex, program, TCX_INGRESS, 0))


def link_tcx(ifindex: int, program: int) -> int:
    """Attach it to what leaves a link, for as long as the returned descriptor is open."""
    return bpf(_LINK_CREATE, struct.pack("=IIII", program, ifindex, TCX_EGRESS, 0) + bytes(16))


def tcx_programs(ifindex: int) -> tuple[int, ...]:
    """Return the ids of the programs of both directions of a link of this thread's namespace."""
    found: list[int] = []
    for direction in (TCX_INGRESS, TCX_EGRESS):
        ids = (ctypes.c_uint32 * _MOST)()
        query = struct.pack("=IIIIQI4xQQQQ", ifindex, direction, 0, 0, ctypes.addressof(ids), _MOST, 0, 0, 0, 0)
        buffer = ctypes.create_string_buffer(query, len(query))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(_CALL[os.uname().machine], _PROG_QUERY, buffer, len(query)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        found += ids[: struct.unpack_from("=I", buffer.raw, 24)[0]]
    return tuple(found)
