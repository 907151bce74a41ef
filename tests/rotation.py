"""What is tested besides, by the day: another runtime, another kernel in the lab, or a real Kubernetes.

`python -m tests.rotation`. The day decides which, so that all six have had their turn within six days.
NRI_RDMA_ROTATION=2026-11-23 takes the turn of that day, to repeat a failure of it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DAY = "NRI_RDMA_ROTATION"
"""The environment's variable with another day than today."""
RUNTIMES = ("containerd-2.2", "containerd-2.3", "cri-o-1.34")
"""What `make runtimes` builds: names of tests/rig/build_runtimes.py."""
KERNELS = ("6.12", "6.1")
"""The kernels of tests/lab/recipe.py that `make lab` does not boot by itself."""
GUEST_FILES = ("test_main_job.py", "test_limits.py", "test_rdma_moves.py", "test_traffic.py")
"""What depends most on the kernel, of tests/lab/guest: about two minutes."""


PYTHON = (sys.executable, "-m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What is tested on one day, and the commands that build and test it, in order."""

    day: date
    name: str
    commands: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return f"{self.day}: {self.name}"


def turn_of(day: date) -> Turn:
    """Return the turn of a day: by its number in the year."""
    turns = tuple(_turns())
    name, commands = turns[day.timetuple().tm_yday % len(turns)]
    return Turn(day=day, name=name, commands=commands)


def _turns() -> Iterator[tuple[str, tuple[tuple[str, ...], ...]]]:
    yield "a real Kubernetes", ((*PYTHON, "tests.cluster", "--smoke", "--", "-q"),)
    for runtime in RUNTIMES:
        which = ("-m", "every_runtime", "--built-runtimes", "-k", runtime)
        build = (*PYTHON, "tests.rig.build_runtimes", runtime)
        yield runtime, (build, (*PYTHON, "tests.parts", "tests/runtime", "-q", *which))
    files = tuple(f"tests/lab/guest/{name}" for name in GUEST_FILES)
    for kernel in KERNELS:
        yield (
            f"kernel {kernel} in the lab",
            ((*PYTHON, "tests.lab", "--kernel", kernel, "--", "-v", "--tb=short", *files),),
        )


def chosen_day(environment: Mapping[str, str] = os.environ) -> date:
    """Return today, or the day that the environment names. Raises ValueError when that is none."""
    named = environment.get(DAY, "")
    return date.fromisoformat(named) if named else datetime.now(UTC).date()


def run(turn: Turn) -> int:
    """Do it all, also after a failure; return the first exit code that is not 0."""
    again = f"to repeat it: {DAY}={turn.day} make rotation"
    print(f"--- rotation of {turn} ({again})", flush=True)
    codes = []
    for command in turn.commands:
        begun = time.monotonic()
        codes.append(subprocess.run(command, cwd=PROJECT, check=False).returncode)
        print(f"--- {' '.join(command[2:])}: {time.monotonic() - begun:.0f} s, exit code {codes[-1]}", flush=True)
    first = next((code for code in codes if code), 0)
    if first:
        print(f"--- rotation of {turn}: failed; {again}", flush=True)
    return first


def main() -> int:
    """Take the turn of the day."""
    try:
        day = chosen_day()
    except ValueError as error:
        print(f"rotation: {DAY}: {error}. Next: give a day such as 2026-11-23.", file=sys.stderr)
        return 2
    return run(turn_of(day))


if __name__ == "__main__":
    sys.exit(main())
