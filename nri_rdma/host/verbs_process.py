"""Queries RDMA devices for their capacity in a separate process (nri_rdma.host.verbs).

The process runs the distribution's Python, so that a driver that hangs or a library that crashes does not harm the
daemon.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: JSON of the program

from nri_rdma.host.verbs import program
from nri_rdma.model.capacity import RdmaCapacity

if TYPE_CHECKING:
    import subprocess

log = logging.getLogger(__name__)

ANSWER_S = 30.0
"""Seconds that all devices together may take to answer. A driver that restarts its firmware takes seconds for one
device."""
_END_S = 2.0
"""Seconds to wait for the end of a killed process; a process that hangs in the kernel is left behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAnswer:
    """The capacity of one device; None if it is unknown. `problem` then says why."""

    capacity: RdmaCapacity | None = None
    problem: str = ""


class VerbsProcess:
    """Runs the process that queries RDMA devices for their capacity, one process at a time. `ask` is for one thread;
    another thread may call `close`."""

    def __init__(self, python: Path | None, *, within_s: float = ANSWER_S) -> None:
        """`python` is a Python that has pyverbs; None: devices are not queried. `within_s` is the time limit of a query
        in seconds."""
        self._python = python
        self._within_s = within_s
        self._running: subprocess.Popen[str] | None = None
        self._closed = threading.Event()
        self.pids: frozenset[int] = frozenset()
        """The id of the process that runs now or ran last; empty before the first one."""

    def ask(self, names: Sequence[str]) -> Mapping[str, CapacityAnswer]:
        """Return the capacity of each of these RDMA devices, by name. Blocks until the devices have answered or the
        time limit has passed.

        Never raises: an error of a device, driver or library is in the answer's `problem`.
        """
        if self._python is None:
            return dict.fromkeys(names, CapacityAnswer(problem="verbs_python is empty"))
        started = time.monotonic()
        lines, problem = self._run(self._python, names)
        answers = _read(lines, names, problem)
        _log_answers(answers, round(1000 * (time.monotonic() - started)))
        return answers

    def close(self) -> None:
        """Kill the process that queries devices, if it runs. Later calls of `ask` start no process."""
        self._closed.set()
        running = self._running
        if running is not None:
            running.kill()

    def _run(self, python: Path, names: Sequence[str]) -> tuple[Sequence[str], str]:
        """Run the program and return the lines that it printed, and the problem to report for devices that no line is
        about."""
        import subprocess  # imported late: most nodes have no pools with shares

        if self._closed.is_set():
            return (), "this daemon is ending"
        command, pipe = [str(python), "-I", program.__file__, "capacity", *names], subprocess.PIPE
        try:
            running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, errors="replace"
            )
        except OSError as error:
            return (), f"{python} cannot be started: {error.strerror}"
        self._running = running
        self.pids = frozenset({running.pid})
        if self._closed.is_set():  # `close` was called meanwhile and saw no process
            running.kill()
        try:
            out, err = running.communicate(timeout=self._within_s)
        except subprocess.TimeoutExpired:
            running.kill()
            try:
                out, err = running.communicate(timeout=_END_S)
            except subprocess.TimeoutExpired:
                return (), f"it did not answer within {self._within_s:g} s, and hangs in the kernel"
            return out.splitlines(), f"it did not answer within {self._within_s:g} s"
        finally:
            self._running = None
        last = err.strip().splitlines()[-1:]
        return out.splitlines(), f"{python} ended with {running.returncode}{f': {last[0]}' if last else ''}"


def _read(lines: Iterable[str], names: Sequence[str], problem: str) -> Mapping[str, CapacityAnswer]:
    """Return an answer for each of these devices, from the program's `lines`. `problem` is the reason for devices that
    no line is about."""
    found: dict[str, CapacityAnswer] = {}
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a line without an end is from a process that was killed
            told: dict[str, Any] = json.loads(line)
            if "device" not in told:
                problem = str(told["problem"])
            elif "problem" in told:
                found[told["device"]] = CapacityAnswer(problem=str(told["problem"]))
            else:
                found[told["device"]] = CapacityAnswer(capacity=RdmaCapacity(**told["capacity"]))
    return {name: found.get(name, CapacityAnswer(problem=problem)) for name in names}


def _log_answers(answers: Mapping[str, CapacityAnswer], took_ms: int) -> None:
    for name, answer in answers.items():
        if answer.capacity is None:
            log.warning("the capacity of a device is not known", extra={"device": name, "error": answer.problem})
        else:
            kind, most = answer.capacity.scarcest
            fact = {"device": name, "scarcest": f"{most} {kind}", "took_ms": took_ms}
            log.info("asked a device for its capacity", extra=fact)
