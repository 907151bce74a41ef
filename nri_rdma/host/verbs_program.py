"""Runs the program that uses pyverbs (nri_rdma.host.verbs.program) for a command, and reads its output.

Each call starts a new process, so that a library that crashes or a driver that hangs spoils one answer only.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any  # Any: JSON of the program

from nri_rdma.errors import ErrorCode, ProofError
from nri_rdma.host.verbs import program

_LOG = "see the kernel's log (`dmesg`)"
_NAME = "name the distribution's Python: verbs_python"
_MOST_SAID = 200


def ask(python: Path | None, verb: str, task: Mapping[str, Any], within_s: float) -> Iterator[dict[str, Any]]:
    """Run the pyverbs program for a task and yield each JSON object as soon as the program prints it. The process is
    killed after `within_s` seconds.

    `python` is the distribution's Python, None if the setting verbs_python is empty. `verb` is the program's command,
    for example "check". Raises ProofError if the process cannot be started, fails, answers nothing, or is killed.
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
        raise ProofError(ErrorCode.PROOF_UNAVAILABLE, what, hint=_NAME) from None
    assert running.stdin and running.stdout and running.stderr  # of pipes
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        running.kill()

    has_answered = False
    clock = threading.Timer(within_s, end)
    clock.start()
    try:
        with suppress(BrokenPipeError):  # the process has ended; the exit code is handled below
            running.stdin.write(f"{json.dumps(task)}\n")
            running.stdin.close()
        for line in running.stdout:
            if line.endswith("\n"):  # a line without an end is from a process that was killed
                yield _answer(line, python)
                has_answered = True
        said = running.stderr.read().strip().splitlines()[-1:]
        code = running.wait()
    finally:
        clock.cancel()
        running.kill()
        running.wait()
    if is_late.is_set():
        what = f"there was no answer within {within_s:g} s"
        raise ProofError(ErrorCode.PROOF_LATE, what, hint=f"{_LOG}, or give it more time: --timeout")
    if code or not has_answered:
        what = f"{python} ended {f'with {code}' if code else 'without an answer'}{f': {said[0]}' if said else ''}"
        raise ProofError(ErrorCode.PROOF_ENDED, what, hint=_LOG if code else _NAME)


def _answer(line: str, python: Path) -> dict[str, Any]:
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        what = f"{python} printed something that is no answer: {line.strip()[:_MOST_SAID]}"
        raise ProofError(ErrorCode.PROOF_ENDED, what, hint=_NAME)
    return told
