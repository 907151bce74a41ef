"""Run a command of a container engine's command-line tool (podman, docker) and return its output."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import TypeVar

from nri_rdma.errors import ErrorCode, NriRdmaError

Told = TypeVar("Told")
_TIMES = 5


def told_of_all(ask: Callable[[], Told]) -> Told:
    """Return what `ask` returns, which lists containers and then asks about each. It is called again, a few times, if
    a container was removed in between: the engine then fails for all of them.

    Raises the NriRdmaError of the last call.
    """
    for _ in range(_TIMES - 1):
        try:
            return ask()
        except NriRdmaError as error:
            if "no such" not in error.what.lower():  # in the words of podman and Docker
                raise
    return ask()


def run(program: str, *arguments: str, timeout_s: float) -> str:
    """Run `program` with these arguments and return its stdout. Blocks until the program ends.

    Raises NriRdmaError if the program is not installed, fails, or takes longer than `timeout_s` seconds.
    """
    command = (program, *arguments)
    words = " ".join(command[:2])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    except FileNotFoundError as error:
        hint = f"install {program} first"
        raise NriRdmaError(ErrorCode.INSTALL, f"there is no {program} in PATH", hint=hint) from error
    except subprocess.TimeoutExpired as error:
        what, hint = f"{program} did not answer in {timeout_s:g} s", f"see what holds {program} up"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=words, hint=hint) from error
    if done.returncode != 0:
        what, hint = f"{program} failed: {' '.join(done.stderr.split())}", f"see `{words}`"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=words, hint=hint)
    return done.stdout
