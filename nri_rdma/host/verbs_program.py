"""Runs the program of pyverbs (nri_rdma.host.verbs.program) for a command, and reads what it prints.

A process for each question: a library that crashes, or a driver that hangs, is the end of one answer only.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any  # Any: JSON of the program

from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.host.verbs import program

_LOG = "see the kernel's log (`dmesg`)"


def ask(python: Path | None, verb: str, task: Mapping[str, Any], within_s: float) -> Iterator[dict[str, Any]]:
    """Yield the lines that the program prints for a task, as they come.

    Raises ProofError where it cannot be started, ends before its time without having ended well, or does not end within
    `within_s`, when it is killed.
    """
    if python is None:
        raise ProofError(ErrorCode.PROOF_UNAVAILABLE, "verbs_python is empty", hint="name the distribution's Python")
    pipe = subprocess.PIPE
    try:
        running = subprocess.Popen(
            [str(python), "-I", program.__file__, verb], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
    except OSError as error:
        what = f"{python} cannot be started: {error.strerror}"
        raise ProofError(
            ErrorCode.PROOF_UNAVAILABLE, what, hint="name the distribution's Python: verbs_python"
        ) from None
    assert running.stdin and running.stdout and running.stderr  # of pipes
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        running.kill()

    clock = threading.Timer(within_s, end)
    clock.start()
    try:
        running.stdin.write(f"{json.dumps(task)}\n")
        running.stdin.close()
        yield from _lines(running.stdout)
        said = running.stderr.read().strip().splitlines()[-1:]
        code = running.wait()
    finally:
        clock.cancel()
        running.kill()
        running.wait()
    if is_late.is_set():
        what = f"there was no answer within {within_s:g} s"
        raise ProofError(ErrorCode.PROOF_LATE, what, hint=f"{_LOG}, or give it more time: --timeout")
    if code:
        what = f"{python} ended with {code}{f': {said[0]}' if said else ''}"
        raise ProofError(ErrorCode.PROOF_ENDED, what, hint=_LOG)


def _lines(out: IO[str]) -> Iterator[dict[str, Any]]:
    for line in out:
        if line.endswith("\n"):  # else half a line of a process that was killed
            yield json.loads(line)
