"""Turns errors of the operating system into our own errors, which have a code and a next step for the user."""

from __future__ import annotations

import errno

from nri_rdma.attach.port import KernelError
from nri_rdma.errors import ErrorCode, InventoryError, NriRdmaError, SettingError

_NO_PRIVILEGE = (errno.EPERM, errno.EACCES)


def told(error: NriRdmaError | KernelError | OSError) -> NriRdmaError:
    """Return the error as an NriRdmaError, which has a code and a next step. An NriRdmaError is returned unchanged."""
    if isinstance(error, NriRdmaError):
        return error
    if error.errno in _NO_PRIVILEGE:
        return NriRdmaError(ErrorCode.PRIVILEGE, _words(error), hint="run it as root")
    if isinstance(error, KernelError):
        return InventoryError(ErrorCode.INVENTORY, str(error), hint="see which kernel and which host this is")
    hint = "see --help for the paths"
    if error.errno == errno.ENOENT:
        hint = "name an existing path; a file that is to be written needs an existing directory"
    return SettingError(ErrorCode.SETTING, _words(error), hint=hint)


def no_thread(error: RuntimeError) -> NriRdmaError:
    """Return our error for a RuntimeError that says that no thread can be started. Any other error is raised again."""
    if "can't start new thread" not in str(error):
        raise error
    what = "the system gives this process no thread, or no memory for its stack"
    hint = (
        "raise what limits it: TasksMax, LimitNPROC, LimitAS and MemoryMax of its unit, or pids and memory of its pod"
    )
    return NriRdmaError(ErrorCode.NO_THREAD, what, hint=hint)


def _words(error: KernelError | OSError) -> str:
    """Return the system's message, with the path that it is about."""
    if isinstance(error, KernelError):
        return str(error)
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")
