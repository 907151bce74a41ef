"""Makes proofs: tests that RDMA works in a container, before the container's program starts.

A separate process with pyverbs loaded makes the proofs (nri_rdma.host.verbs.warm). It is started for the first proof
and kept. It forks a child for each proof, so a driver that hangs or a library that crashes harms neither the daemon nor
other proofs.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import select
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final  # Any: JSON of the program

from nri_rdma.attach.port import KernelError
from nri_rdma.decide.proof import LEAST_LOCKED, TRANSFER_BYTES, bytes_to_register
from nri_rdma.host.cgroup import joined_by, memory_max
from nri_rdma.host.warm_process import WarmProcess
from nri_rdma.model.proof import DeviceProof, DeviceTask, ProofAnswer, ProofEnd, ProofProblem, ProofStep, ProofTask

log = logging.getLogger(__name__)

_PATIENCE_S: Final = 0.35
"""Seconds to wait, after a proof's deadline, for the report that its child was killed. If the report does not come, the
process that makes proofs (tests of RDMA in containers) hangs itself."""
_READ_BYTES: Final = 65536
_MOST_LIMIT: Final = (1 << 63) - 1
"""The largest limit that resource.setrlimit accepts; OCI runtimes write "no limit" as 2**64 - 1."""
_MEMLOCK = re.compile(r"^Max locked memory\s+(\S+)", re.MULTILINE)
_ENTER: Final = (
    "the container is created again; if this repeats, see that the daemon has CAP_SYS_ADMIN and CAP_SYS_PTRACE, and the"
    " host's cgroups at cgroup_root (chart: `prove: true`)"
)


class _UnavailableError(Exception):
    """The error if a proof (a test that RDMA works in a container) cannot be made; the text says why. `hint` is the
    next step, "" if it is about pyverbs and its Python."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class Prover:
    """Tests whether RDMA works in containers. Each test, a proof, moves data through the RDMA devices in the
    container's network namespace and cgroup.

    Safe for use by several threads. The calling thread must be in the process's own network namespace.
    """

    def __init__(self, python: Path | None, cgroup_root: Path) -> None:
        """`python` is a Python that has pyverbs; None: `prove` then answers that RDMA cannot be tested. `cgroup_root`
        is the mount point of the host's cgroups."""
        self._python = python
        self._cgroup_root = cgroup_root
        self._lock = threading.Lock()  # guards the next two: one thread alone restarts a process that ended
        self._warm: WarmProcess | None = None
        self._is_closed = False

    def warm_up(self) -> None:
        """Start the process that makes proofs (tests of RDMA in containers), which takes 0.1 s. Without this call, the
        first proof starts the process. A failure is only logged."""
        try:
            self._running()
        except _UnavailableError as error:
            log.warning("no container can be proved", extra={"error": str(error)})

    def prove(self, task: ProofTask, within_s: float) -> ProofAnswer:
        """Test whether RDMA works in a container, and return the result for each device. Blocks for at most `within_s`
        + 0.5 s. An error becomes the end UNAVAILABLE of the answer."""
        started, hint = time.monotonic(), ""
        try:
            end, text, proofs = self._prove(task, started + within_s)
        except _UnavailableError as error:
            end, text, proofs, hint = ProofEnd.UNAVAILABLE, str(error), (), error.hint
        except OSError as error:  # no file descriptor is left
            end, text, proofs = ProofEnd.UNAVAILABLE, str(error.strerror), ()
        took_ms = round(1000 * (time.monotonic() - started), 3)
        return ProofAnswer(end=end, text=text, hint=hint, proofs=proofs, took_ms=took_ms)

    def close(self) -> None:
        """Kill the process that makes proofs (tests of RDMA in containers), with its children. Later calls of `prove`
        start no process."""
        with self._lock:
            self._is_closed = True
            warm = self._warm
        if warm is not None:
            warm.end()

    def _prove(self, task: ProofTask, until: float) -> tuple[ProofEnd, str, tuple[DeviceProof, ...]]:
        job = self._job(task, until)
        read, write = os.pipe()
        try:
            warm = self._given(job, write)
            lines = _lines(read, until + _PATIENCE_S)
        finally:
            os.close(read)
        for line in lines:
            if "refused" in line:
                raise _UnavailableError(line["refused"], hint=_ENTER)
        answers = [line["answer"] for line in lines if "answer" in line]
        proofs = tuple(_proof(asked, answer) for asked, answer in zip(task.devices, answers, strict=False))
        end, text = self._end(warm, lines[-1] if lines else {}, until)
        missing = task.devices[len(proofs) :]
        if missing:
            end = ProofEnd.ENDED if end is ProofEnd.ANSWERED else end
            text = f"{missing[0].device} port {missing[0].port} has not answered{f': {text}' if text else ''}"
        return end, text, proofs

    def _job(self, task: ProofTask, until: float) -> Mapping[str, Any]:
        """Return the request that asks the proving process for one proof, a test of RDMA in the container of `task`.
        `until` is the proof's deadline in seconds of time.monotonic.

        Raises _UnavailableError if the container's cgroup is not found, or the daemon may lock too little memory.
        """
        try:
            procs = joined_by(self._cgroup_root, task.cgroups_path, task.pid)
            memory = memory_max(procs, self._cgroup_root)
            memlock = _lockable(_memlock_of(task))
        except OSError as error:
            raise _UnavailableError(f"{error.filename}: {error.strerror}", hint=_ENTER) from error
        except ValueError as error:
            raise _UnavailableError(f"its cgroup is not known: {error}", hint=_ENTER) from error
        size = bytes_to_register(memlock if memlock != resource.RLIM_INFINITY else None, memory)
        return {
            "pid": task.pid,
            "until": until,
            "procs": [str(file) for file in procs],
            "memlock": memlock,
            "addresses": [str(address) for address in task.addresses],
            "tasks": [_task(device, size) for device in task.devices],
        }

    def _given(self, job: Mapping[str, Any], report: int) -> WarmProcess:
        """Send a request for a proof (a test of RDMA in a container) to the proving process, and return that process.
        `report` is the descriptor to which the process writes the results; it is closed here.

        Raises _UnavailableError if the process cannot be started or does not accept the request.
        """
        message = json.dumps(job).encode()
        try:
            for _ in range(2):  # the process may have ended since the check
                warm = self._running()
                try:
                    warm.send(message, report)
                except ConnectionError:
                    warm.end()
                else:
                    return warm
        except OSError as error:
            raise _UnavailableError(f"the process that makes proofs accepts no job: {error.strerror}") from error
        finally:
            os.close(report)
        raise _UnavailableError(warm.last_words())

    def _running(self) -> WarmProcess:
        """Return the process that makes proofs (tests of RDMA in containers); start it if it does not run. Raises
        _UnavailableError if it cannot be started, the setting verbs_python is empty, or this object is closed."""
        if self._python is None:
            raise _UnavailableError("verbs_python is empty")
        with self._lock:
            if self._is_closed:
                raise _UnavailableError("this daemon is ending")
            if self._warm is not None and self._warm.has_ended():
                self._warm.end()
                self._warm = None
            if self._warm is None:
                self._warm = _started(self._python)
            return self._warm

    def _end(self, warm: WarmProcess, last: Mapping[str, Any], until: float) -> tuple[ProofEnd, str]:
        """Return how a proof (a test of RDMA in a container) ended, with an explanation. `last` is the last line of the
        proof's report; `until` is its deadline.

        Raises _UnavailableError if the proving process has exited with an error code.
        """
        if "end" in last:
            return ProofEnd(last["end"]), last["text"]
        is_late = time.monotonic() >= until
        if is_late and warm.is_loading():
            return ProofEnd.LATE, f"{self._python} is still loading pyverbs"
        warm.end()
        if self._is_closed:
            return ProofEnd.ENDED, "this daemon is ending"
        if is_late:
            return ProofEnd.LATE, "the process that makes proofs did not answer, and was killed"
        if warm.has_failed():
            raise _UnavailableError(warm.last_words())
        return ProofEnd.ENDED, warm.last_words()


def _started(python: Path) -> WarmProcess:
    try:
        warm = WarmProcess(python)
    except OSError as error:
        raise _UnavailableError(f"{python} cannot be started: {error.strerror}") from error
    except KernelError as error:
        raise _UnavailableError(str(error)) from error
    log.info("started the process that makes proofs", extra={"pid": warm.pid})
    return warm


def _lines(report: int, until: float) -> Sequence[Mapping[str, Any]]:
    """Return the lines that a proof (a test of RDMA in a container) wrote to the pipe `report`. Reads until the pipe is
    closed or the time `until` of time.monotonic has come.

    An incomplete last line, which a killed process leaves, is dropped.
    """
    text = b""
    waiting = select.poll()
    waiting.register(report, select.POLLIN)
    while (left_s := until - time.monotonic()) > 0 and waiting.poll(1000 * left_s):
        read = os.read(report, _READ_BYTES)
        if not read:
            break
        text += read
    lines = []
    for line in text.splitlines():
        with suppress(ValueError):
            lines.append(json.loads(line))
    return lines


def _memlock_of(task: ProofTask) -> int:
    """Return the limit RLIMIT_MEMLOCK of the container's program, in bytes. Raises OSError if the container's process
    has ended."""
    if task.memlock is not None:
        return task.memlock if task.memlock <= _MOST_LIMIT else resource.RLIM_INFINITY
    found = _MEMLOCK.search(Path(f"/proc/{task.pid}/limits").read_text())
    return int(found[1]) if found is not None and found[1].isdecimal() else resource.RLIM_INFINITY


def _lockable(wanted: int) -> int:
    """Return the RLIMIT_MEMLOCK that a process of this daemon can have: `wanted`, or the daemon's own limit if that is
    lower.

    Raises _UnavailableError if the daemon's limit is too low for any proof, that is, any test of RDMA in a container.
    """
    _, own = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if own == resource.RLIM_INFINITY or 0 <= wanted <= own:
        return wanted
    if own < LEAST_LOCKED:
        what = f"the daemon itself may lock {own} bytes of memory only (LimitMEMLOCK= of its service)"
        raise _UnavailableError(what, hint="give the daemon's service LimitMEMLOCK=infinity, and restart it")
    return own


def _task(device: DeviceTask, size: int) -> Mapping[str, Any]:
    return {
        "device": device.device,
        "port": device.port,
        "gid_index": device.gid_index,
        "roce_version": device.roce_version,
        "memory_bytes": size,
        "transfer_bytes": TRANSFER_BYTES,
    }


def _proof(asked: DeviceTask, answer: Mapping[str, Any]) -> DeviceProof:
    gid, problem = answer.get("gid"), answer.get("problem")
    return DeviceProof(
        device=asked.device,
        port=asked.port,
        gid_index=gid["index"] if gid else None,
        gid=gid["value"] if gid else "",
        transport=answer.get("transport") or "",
        registered_bytes=answer.get("registered_bytes", 0),
        transferred_bytes=answer.get("transferred_bytes", 0),
        problem=problem and ProofProblem(step=ProofStep(problem["step"]), text=problem["text"], errno=problem["errno"]),
    )
