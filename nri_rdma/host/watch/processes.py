"""Notices the end of processes: of sandboxes that have no other sign of their end, and of containers with rdma limits.

A pod on the host's network has no namespace of its own to watch, but has a process that lives until the sandbox ends.
Pids are reused, so a process is identified by its pid and start time.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from nri_rdma.attach.port import ProcessIdentity

log = logging.getLogger(__name__)

_START_TIME = 22 - 3
"""The index of starttime in /proc/PID/stat, counted after the command's name, which may contain anything:
proc_pid_stat(5)."""


class ProcessWatcher:
    """Calls `on_gone(process)` in a thread of its own when a watched process ends. Exceptions of `on_gone` are
    logged."""

    def __init__(self, on_gone: Callable[[ProcessIdentity], None]) -> None:
        self._on_gone = on_gone
        self._watched: dict[int, ProcessIdentity] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._thread = threading.Thread(target=self._serve, name="process-watcher", daemon=True)
        self._thread.start()

    def watch(self, pid: int) -> ProcessIdentity:
        """Watch a process and return its identity. A process that is already watched is not added again. Raises
        ProcessLookupError if there is no such process."""
        fd = os.pidfd_open(pid)
        try:
            process = ProcessIdentity(pid=pid, start=start_of(pid))
            if _has_ended(fd):  # then the start time may be that of another process with this pid
                raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")
        except BaseException:
            os.close(fd)
            raise
        self._register(fd, process)
        return process

    def watch_again(self, process: ProcessIdentity) -> None:
        """Watch a process with a known identity, for example from before a restart of the daemon. Raises
        ProcessLookupError if the process has ended, even if its pid now belongs to another process."""
        if start_of(process.pid) != process.start or self.watch(process.pid) != process:
            raise ProcessLookupError(errno.ESRCH, f"process {process.pid} is now another process")

    def close(self) -> None:
        """End the thread and wait for its end. No process is watched any more."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        with self._lock:
            self._closed = True
            for fd in (*self._watched, self._wake_read, self._wake_write):
                os.close(fd)
            self._watched.clear()
            self._epoll.close()

    def _register(self, fd: int, process: ProcessIdentity) -> None:
        with self._lock:
            if self._closed or process in self._watched.values():
                os.close(fd)
                return
            self._watched[fd] = process  # first: the thread may report the end at once
            try:
                self._epoll.register(fd, select.EPOLLIN)
            except OSError:
                del self._watched[fd]
                os.close(fd)
                raise

    def _serve(self) -> None:
        while True:
            ready = [fd for fd, _ in self._epoll.poll()]
            if self._wake_read in ready:
                return
            for fd in ready:
                self._tell(fd)

    def _tell(self, fd: int) -> None:
        with self._lock:
            process = self._watched.pop(fd)
            self._epoll.unregister(fd)
            os.close(fd)
        try:
            self._on_gone(process)
        except Exception:  # an exception must not end the watching
            log.exception("the end of a process was not handled")


def start_of(pid: int) -> int:
    """Return the start time of a process, in clock ticks since boot. Raises ProcessLookupError if there is no such
    process, OSError if it cannot be found out."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError) as error:
        raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended") from error
    return int(text.rpartition(")")[2].split()[_START_TIME])


def _has_ended(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
