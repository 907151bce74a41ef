"""A process of the distribution's Python that keeps pyverbs loaded and makes proofs, tests of RDMA in containers
(nri_rdma.host.verbs.warm)."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from nri_rdma.host.netlink.namespaces.netns_visit import be_home
from nri_rdma.host.verbs import program, warm

_END_S = 0.1
"""Seconds to wait for the end of a killed process; a process that hangs in the kernel is left behind."""
_READ_BYTES = 65536
LOADS_S = 30.0
"""Seconds that loading pyverbs may take on a busy node with a slow disk."""


class WarmProcess:
    """One process that has pyverbs loaded and makes proofs (tests of RDMA in containers), from its start to its end.
    Safe for use by several threads."""

    def __init__(self, python: Path) -> None:
        """Start the process. Raises OSError if it cannot be started, and KernelError if the calling thread is in
        another network namespace than this process: the new process would stay in that namespace."""
        import subprocess  # imported late: most nodes make no proofs

        be_home()
        self._python = python
        self._lock = threading.Lock()  # guards the descriptors: none is used after `end` has closed it
        self._jobs, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._jobs.setblocking(False)  # sending never blocks, even if the process reads no jobs
        self._errors, errors = os.pipe()
        os.set_blocking(self._errors, False)
        os.set_blocking(errors, False)  # nobody reads the pipe while the process lives: what does not fit is dropped
        self._last_line = ""
        self._is_loading = True
        self._started = time.monotonic()
        command = [str(python), "-I", program.__file__, "warm"]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=errors
                )
        except OSError:
            self._close()
            raise
        finally:
            os.close(errors)

    @property
    def pid(self) -> int:
        """The process id of this process, which makes proofs (tests of RDMA in containers)."""
        return self._process.pid

    def send(self, job: bytes, report: int) -> None:
        """Send a job, the JSON request for one proof (a test of RDMA in a container), to the process. `report` is the
        descriptor to which the process writes the results.

        Raises ConnectionError if the process has ended, and another OSError if it accepts no job.
        """
        with self._lock:
            if self._jobs.fileno() < 0:
                raise BrokenPipeError
            socket.send_fds(self._jobs, [job], [report])

    def has_ended(self) -> bool:
        """Return whether the process has ended, for whatever reason."""
        return self._process.poll() is not None

    def is_loading(self) -> bool:
        """Return whether the process may still be loading pyverbs: it was started less than LOADS_S seconds ago and has
        not sent READY."""
        with self._lock, suppress(OSError):
            self._is_loading = self._is_loading and self._jobs.recv(_READ_BYTES) != warm.READY
        return self._is_loading and time.monotonic() < self._started + LOADS_S

    def has_failed(self) -> bool:
        """Return whether the process has exited with an error code; False if a signal ended it or it still runs."""
        return (self._process.poll() or 0) > 0

    def end(self) -> None:
        """Kill the process, and with it the child processes that test RDMA in containers."""
        from subprocess import TimeoutExpired

        self._process.kill()
        with suppress(TimeoutExpired):
            self._process.wait(_END_S)
        with self._lock:
            self._close()

    def last_words(self) -> str:
        """Return the process's exit code and the last line that it wrote to stderr. Call `end` first."""
        ended = f"{self._python} ended with {self._process.returncode}"
        return f"{ended}: {self._last_line}" if self._last_line else ended

    def _close(self) -> None:
        if self._jobs.fileno() < 0:
            return
        self._jobs.close()
        with suppress(BlockingIOError):  # it wrote nothing
            written = os.read(self._errors, _READ_BYTES).decode(errors="replace")
            self._last_line = (written.strip().splitlines() or [""])[-1]
        os.close(self._errors)
