"""Locks that make sure that one daemon uses a state directory, and that one daemon serves a runtime.

Two daemons with one state directory would undo each other's journal. Two daemons of one runtime would both attach
devices to every pod. Both locks are file locks, which the kernel releases when the process ends. The runtime's lock
lies beside its socket, because all daemons of a runtime see that folder, even in containers; only root may write there.
"""

from __future__ import annotations

import fcntl
import logging
import os
import stat
import time
from pathlib import Path

from nri_rdma.errors import ErrorCode, RuntimeAnsweredError, StateError

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 0.02
"""Pause in seconds between two attempts to take a lock that another process holds. flock has no timeout."""


class Sole:
    """The locks of the state directory and of the runtime, held until `release` or the end of the process.

    `by` is in seconds of `time.monotonic`. If another daemon still holds a lock then, raises RuntimeAnsweredError for
    the runtime's lock and StateError for the lock of the state directory. Raises OSError if the state directory cannot
    be used.
    """

    def __init__(self, state_dir: Path, nri_socket: Path, by: float = 0.0) -> None:
        self._fds = [_open_state(state_dir)]
        try:
            self._lock_runtime(nri_socket, by)
            _lock_state(self._fds[0], state_dir, by)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Release both locks. Calling it twice is allowed."""
        while self._fds:
            os.close(self._fds.pop())

    def _lock_runtime(self, nri_socket: Path, by: float) -> None:
        """Take the lock of the runtime. If the runtime has not started yet, create the folder of its socket, with the
        mode that the runtime would use."""
        try:
            lock = runtime_lock(nri_socket)
            lock.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._fds.append(_open(lock))
        except OSError as error:  # with one daemon, going on harms nobody; ending would harm every pod
            log.warning("cannot tell whether another daemon serves this runtime", extra={"error": str(error)})
            return
        if not _lock(self._fds[-1], by):
            raise RuntimeAnsweredError(
                ErrorCode.STATE_LOCKED,
                f"another daemon (pid {_holder(self._fds[-1])}) answers this runtime",
                where=str(nri_socket),
                hint="stop one of them: they would both give every pod devices",
            )


def runtime_lock(nri_socket: Path) -> Path:
    """Return the path of the lock beside a runtime's socket."""
    nri_socket = Path(os.path.realpath(nri_socket))  # another daemon may use a symbolic link to it
    return nri_socket.with_name(f"{nri_socket.name}.nri-rdma.lock")


def _open_state(state_dir: Path) -> int:
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    _refuse_foreign(state_dir)
    return _open(state_dir / "lock")


def _refuse_foreign(state_dir: Path) -> None:
    """Raise StateError if users other than root can write to the state directory. The daemon carries out the steps in
    its journal as root."""
    found = state_dir.stat()
    if found.st_uid in {0, os.geteuid()} and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return
    raise StateError(
        ErrorCode.STATE_FOREIGN,
        f"others than root may write here (owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o})",
        where=str(state_dir),
        hint=f"chown root {state_dir} and chmod 0700 {state_dir}, or give another --state-dir",
    )


def _lock_state(fd: int, state_dir: Path, by: float) -> None:
    if not _lock(fd, by):
        raise StateError(
            ErrorCode.STATE_LOCKED,
            f"another daemon (pid {_holder(fd)}) uses this state directory",
            where=str(state_dir),
            hint="stop it, or give another --state-dir",
        )


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _lock(fd: int, by: float) -> bool:
    """Take the lock and write our process id into its file. Return False if another process still holds the lock at
    `by`."""
    while not _is_locked(fd):
        if time.monotonic() >= by:
            return False
        time.sleep(_LOOK_AGAIN_S)
    os.truncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return True


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(fd: int) -> str:
    return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
