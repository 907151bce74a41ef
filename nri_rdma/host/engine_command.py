"""Run a command of a container engine's command-line tool (podman, docker) and return its output."""

from __future__ import annotations

import subprocess

from nri_rdma.errors import ErrorCode, NriRdmaError


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
