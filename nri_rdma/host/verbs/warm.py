"""Makes proofs, tests of RDMA in containers: loads pyverbs and its drivers once, and forks a child into a container for
each proof.

The process sends `ready` when everything is loaded. Jobs arrive over a socket, one JSON object per datagram, each with
the write end of a pipe for its report. A report has one JSON object per line: `{"answer": ...}` of `selfcheck.check`
for each device; or `{"refused": TEXT}` if the child cannot enter the container or the job cannot be read. The last line
is `{"end": "answered" | "late" | "ended", "text": TEXT}`, written when the child has ended, or when the job came too
late to start a child. When the socket is closed, the children are killed and the process ends.

A job has `pid`, `until` (the time at which the child is killed, in seconds of the monotonic clock), `procs` (the
cgroup.procs files to write to in order to join the container's cgroups), `memlock` (RLIMIT_MEMLOCK in bytes; -1: no
limit), `addresses` (the pod's IP addresses, as text) and `tasks` (those of selfcheck, without their addresses).
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn  # Any: JSON, and pyverbs has no types

from nri_rdma.host.verbs import library, selfcheck

NAME = "nri-rdma-proof"
"""The name that `ps` and `rdma resource show` display for a child process."""
READY = b"ready"
"""The datagram that the process sends when pyverbs and its drivers are loaded."""
MOST_BYTES = 65536
"""The largest size of a job (the JSON request for one test) in bytes."""
_PARTS = ("device", "pd", "mr", "cq", "qp", "addr", "wr", "cmid")
_STUCK_S = 0.15
"""Seconds to wait for the end of a killed child; a child that hangs in the kernel is left behind."""
_HOST_CGROUPS = "/proc/1/ns/cgroup"
_LOCKS = 1 << 14 | 1 << 24
"""The bits of CAP_IPC_LOCK and CAP_SYS_RESOURCE. A process with one of them can lock memory beyond RLIMIT_MEMLOCK."""
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_CLONE_NEWCGROUP, _CLONE_NEWNET = 0x02000000, 0x40000000
_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass
class _Child:
    """A child process that makes one proof: it tests RDMA in one container. It is killed at the time `until`, in
    seconds of time.monotonic."""

    pid: int
    until: float
    report: int
    """The pipe to which the child's results are written; -1 once the child's end has been reported."""
    ended: int
    """A pidfd, readable once the child has ended; -1 after the child's exit status was read."""
    is_killed: bool = False

    def is_waited_for(self) -> bool:
        """Return whether the end of the child has not been reported yet."""
        return self.report >= 0

    def tell_end(self, end: str, text: str = "") -> None:
        """Write to the pipe `report` how the child ended: "answered", "late" or "ended", with an explanation. Later
        calls do nothing."""
        if self.report < 0:
            return
        _answer(self.report, {"end": end, "text": text})
        self.report = -1


def serve(control: socket.socket) -> None:
    """Run the jobs (requests to test RDMA in a container) that arrive over the socket `control`, in parallel. Return
    when the socket is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C: the daemon closes the socket instead
    _load()
    control.send(READY)
    children: list[_Child] = []
    while True:
        readable = _wait(control, children)
        if control.fileno() in readable and not _accept(control, children):
            break
        for child in children:
            if child.ended in readable:
                _reap(child)
            elif child.is_waited_for() and time.monotonic() >= child.until:
                _give_up(child)
        children = [child for child in children if child.ended >= 0]
    for child in children:
        os.kill(child.pid, signal.SIGKILL)


def _load() -> None:
    """Load pyverbs and its drivers, so that the children need not. A failure is ignored here: the child that needs the
    module reports it."""
    with suppress(Exception):
        for name in _PARTS:
            library.part(name)
        library.part("device").get_device_list()  # loads the drivers


def _wait(control: socket.socket, children: Sequence[_Child]) -> set[int]:
    """Wait for a job, the end of a child, or the first deadline of a child. Return the readable descriptors."""
    waiting = select.poll()
    for descriptor in (control.fileno(), *(child.ended for child in children)):
        waiting.register(descriptor, select.POLLIN)
    untils = [child.until for child in children if child.is_waited_for()]
    left_s = max(0.0, min(untils) - time.monotonic()) if untils else None
    return {descriptor for descriptor, _ in waiting.poll(None if left_s is None else int(1000 * left_s) + 1)}


def _accept(control: socket.socket, children: list[_Child]) -> bool:
    """Receive a job (the request to test RDMA in one container) and start a child for it. Return False if the socket
    was closed."""
    message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 1)
    if not message:
        return False
    (report,) = descriptors
    try:
        job = json.loads(message)
    except ValueError:
        _answer(report, {"refused": f"the job cannot be read: it may have at most {MOST_BYTES} bytes"})
        return True
    if time.monotonic() >= job["until"]:
        _answer(report, {"end": "late", "text": "pyverbs was still being loaded"})
        return True
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _be_child(job, report, parent)
    children.append(_Child(pid=pid, until=job["until"], report=report, ended=os.pidfd_open(pid)))
    return True


def _reap(child: _Child) -> None:
    """Read the exit status of a child that has ended, and write how the child ended to the pipe with its results."""
    _, status = os.waitpid(child.pid, 0)
    os.close(child.ended)
    child.ended = -1
    if child.is_killed:
        child.tell_end("late")
    elif os.WIFSIGNALED(status):
        child.tell_end("ended", f"the proving process was ended by {signal.Signals(os.WTERMSIG(status)).name}")
    elif os.WEXITSTATUS(status):
        child.tell_end("ended", f"the proving process ended with {os.WEXITSTATUS(status)}")
    else:
        child.tell_end("answered")


def _give_up(child: _Child) -> None:
    """Kill a child whose time is over. If it was killed already, report that it hangs in the kernel."""
    if child.is_killed:
        child.tell_end("late", f"process {child.pid} hangs in the kernel, and stays until its driver returns")
    else:
        os.kill(child.pid, signal.SIGKILL)
        child.is_killed, child.until = True, time.monotonic() + _STUCK_S


def _answer(report: int, last: Mapping[str, Any]) -> None:
    """Write `last` as the last line of a report, which is a pipe to the daemon, and close the pipe."""
    with suppress(BrokenPipeError):  # the reader has gone
        _tell(report, last)
    os.close(report)


def _tell(report: int, what: Mapping[str, Any]) -> None:
    # It begins with a newline because a killed child may have left half a line.
    os.write(report, f"\n{json.dumps(what)}\n".encode())


def _be_child(job: Mapping[str, Any], report: int, parent: int) -> NoReturn:
    """Run in the forked child: test RDMA in the job's container, write the results to the pipe `report`, and exit.
    `parent` is the parent's pid: the child exits at once if the parent has ended."""
    code = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            report = _leave_all_but(report)
            code = _prove(job, report)
    except BaseException as error:  # noqa: BLE001 - the child must not return into the parent's loop
        sys.stderr.write(f"{library.words(error)}\n")
    finally:
        os._exit(code)


def _leave_all_but(report: int) -> int:
    """Close all descriptors that were inherited from the parent, except the pipe `report`. Return the pipe's new
    number."""
    kept = os.dup2(report, sys.stderr.fileno() + 1)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return kept


def _prove(job: Mapping[str, Any], report: int) -> int:
    _libc.prctl(_PR_SET_NAME, NAME.encode())
    try:
        _enter(job)
    except OSError as error:
        _tell(report, {"refused": str(error.strerror)})
        return 0
    for task in job["tasks"]:
        _tell(report, {"answer": selfcheck.check({**task, "addresses": job["addresses"]})})
    return 0


def _enter(job: Mapping[str, Any]) -> None:
    """Apply the restrictions of a job's container to this process: its cgroup, network namespace and memory limits.
    Raises OSError, with a readable text, for the first restriction that cannot be applied."""
    with _saying("its network namespace cannot be opened"):
        namespace = os.open(f"/proc/{job['pid']}/ns/net", os.O_RDONLY)
    with _saying("the proving process cannot be made the first to be killed when memory runs out"):
        Path("/proc/self/oom_score_adj").write_text("1000")
    for procs in job["procs"]:
        _join(procs)
    with _saying("its network namespace cannot be entered"):
        _setns(namespace, _CLONE_NEWNET)
    os.close(namespace)
    with _saying("RLIMIT_MEMLOCK cannot be set"):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (job["memlock"], job["memlock"]))
    with _saying("the capabilities that bypass its limits cannot be dropped"):
        _drop_capabilities()


def _join(procs: str) -> None:
    with _saying("its cgroup cannot be entered"):
        try:
            Path(procs).write_text("0")
        except FileNotFoundError:
            # With cgroups mounted with nsdelegate, a process in a container can only join cgroups of its own namespace.
            descriptor = os.open(_HOST_CGROUPS, os.O_RDONLY)
            _setns(descriptor, _CLONE_NEWCGROUP)
            os.close(descriptor)
            Path(procs).write_text("0")


def _setns(descriptor: int, kind: int) -> None:
    if _libc.setns(descriptor, kind) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _drop_capabilities() -> None:
    """Drop all capabilities if one of them bypasses the container's limits. Raises OSError if the kernel refuses.

    A systemd service whose SystemCallFilter forbids capset never has such capabilities, so it does not need the call.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (permitted,) = (int(line.split()[1], 16) for line in lines if line.startswith("CapPrm:"))
    if permitted & _LOCKS == 0:
        return
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def _saying(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        named = f" ({error.filename})" if error.filename else ""
        raise OSError(error.errno, f"{what}{named}: {error.strerror}") from error
