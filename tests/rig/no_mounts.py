"""Becomes a command that the kernel refuses fsopen(2): `python -m tests.rig.no_mounts COMMAND [ARGUMENT...]`."""

import ctypes
import errno
import os
import struct
import sys

_FSOPEN = 430
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2  # include/uapi/linux/prctl.h, seccomp.h
_LOAD_NUMBER, _EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000  # SECCOMP_RET_*
_INSTRUCTION = struct.Struct("=HBBI")
_PROGRAM = (
    _INSTRUCTION.pack(_LOAD_NUMBER, 0, 0, 0),
    _INSTRUCTION.pack(_EQUAL, 0, 1, _FSOPEN),
    _INSTRUCTION.pack(_RETURN, 0, 0, _ERRNO | errno.EPERM),
    _INSTRUCTION.pack(_RETURN, 0, 0, _ALLOW),
)


def main() -> None:
    """Install the filter, and become the command."""
    libc = ctypes.CDLL(None, use_errno=True)
    instructions = ctypes.create_string_buffer(b"".join(_PROGRAM))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(_PROGRAM), ctypes.addressof(instructions)))
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program, 0, 0)):
        if libc.prctl(*arguments) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
