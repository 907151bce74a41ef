"""Parts of the suite that run side by side, and what must run alone after them: `python -m tests.parts [ARGUMENTS]`.

Each part that runs beside others has a host of its own (tests/namespaces.py). The files are dealt out, the longest
first, so that the parts end together. The part `machine` has this machine's own network, and so has what runs alone.
Where no hosts can be made, part 1 has every file that changes, compares or reads this machine's own network. Every file
is in exactly one part.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import durations, namespaces

PROJECT = Path(__file__).resolve().parents[1]
SEED = PROJECT / "tests/durations.json"
"""Seconds per file of an earlier run; what is wrong or missing in there costs time only."""
PARTS = 3
"""More than most machines of developers and CI have processors: much of a test is waiting."""
PARTS_OF_ONE_HOST = 2
MACHINE = "machine"
ALONE = "alone"
UNKNOWN_S = 1.0
"""Assumed for a file that the seed does not have."""
HOST = (
    "tests/runtime/",
    "tests/faults/",
    "tests/house/test_examples.py",
    "tests/kernel/test_daemon_reload.py",
    "tests/kernel/test_held.py",
    "tests/kernel/test_launched.py",
    "tests/unit/commands/",
    "tests/unit/daemon/",
    "tests/unit/doors/",
)
"""Folders and files whose tests make links in this machine's own namespace, start runtimes or compare the whole host;
and those that read a described node together with the links of the host that they run on. They can only be in different
parts when each part has a host of its own."""
MACHINE_FILES = {
    "tests/interop/test_calls.py": "has Go fetch modules",
    "tests/interop/test_cdi.py": "has Go fetch modules",
    "tests/interop/test_nri_runtime.py": "has Go fetch modules",
    "tests/interop/test_nri_stub.py": "has Go fetch modules",
    "tests/interop/test_streams.py": "has Go fetch modules",
    "tests/interop/test_ttrpc_example.py": "has Go fetch modules",
    "tests/interop/test_typed.py": "has Go fetch modules",
    "tests/runtime/test_first_run.py": "has pip ask the package index",
    "tests/wheel/test_ttrpc_wheel.py": "has pip ask the package index",
    "tests/wheel/test_wheel.py": "has pip ask the package index",
}
"""Files that need this machine's own network, each with the reason."""
ALONE_FILES = {
    "tests/kernel/test_bench.py": "measures a floor",
    "tests/kernel/test_host_use.py": "measures how late a thread of the same process is",
    "tests/kernel/test_link_events.py": "measures events per second and the share of a processor",
    "tests/kernel/test_many_routes.py": "measures how late a thread of the same process is",
    "tests/kernel/test_restless_lists.py": "changes routes as fast as the machine can",
    "tests/runtime/test_away.py": "needs the number of a namespace again, which nobody else may take",
    "tests/runtime/test_overlap.py": "measures how long attaches that overlap take",
}
"""Files that run when nothing else does, each with the reason."""
_OF_ONE_HOST = "@host"
_NOTHING_COLLECTED = 5  # pytest.ExitCode.NO_TESTS_COLLECTED, which this file does not import: it starts fast
_INTERRUPTED = 130
_FAILURES = ("FAILED ", "ERROR ")
"""How the lines of pytest's short summary begin that name a test that failed."""
_SKIPPED = re.compile(r"SKIPPED \[(\d+)\] \S+: (.+)")
"""A line of that summary: how many tests were skipped at a place, and the reason."""


def names(count: int = PARTS, *, one_host: bool = False) -> tuple[str, ...]:
    """Return every part's name, as `--part` takes it; `one_host`: the parts share this machine's network."""
    numbers = range(1, count + 1)
    if one_host:
        return (*(f"{number}/{count}{_OF_ONE_HOST}" for number in numbers), ALONE)
    return (*(f"{number}/{count}" for number in numbers), MACHINE, ALONE)


def choose(part: str, files: Iterable[str], seconds: Mapping[str, float]) -> frozenset[str]:
    """Return the files of a part. Every process that is given the same files and seconds deals them the same way."""
    there = frozenset(files)
    alone = there & ALONE_FILES.keys()
    if part == ALONE:
        return alone
    machine = there & MACHINE_FILES.keys()
    if part == MACHINE:
        return machine
    number, _, count = part.removesuffix(_OF_ONE_HOST).partition("/")
    if part.endswith(_OF_ONE_HOST):
        first, others = frozenset(file for file in there - alone if file.startswith(HOST)), there - alone
    else:
        first, others = frozenset[str](), there - alone - machine
    return _deal(first, others - first, int(count), seconds)[int(number) - 1]


def has_own_host(part: str) -> bool:
    """Tell whether a part runs in namespaces of its own."""
    return part not in (MACHINE, ALONE) and not part.endswith(_OF_ONE_HOST)


def read_seed(path: Path = SEED) -> Mapping[str, float]:
    """Return the seconds that files took in an earlier run."""
    seconds: dict[str, float] = json.loads(path.read_text())
    return seconds


def _deal(
    first: frozenset[str], others: frozenset[str], count: int, seconds: Mapping[str, float]
) -> list[frozenset[str]]:
    dealt = [set(first), *(set[str]() for _ in range(count - 1))]
    until = [sum(seconds.get(file, UNKNOWN_S) for file in part) for part in dealt]
    for file in sorted(others, key=lambda file: (-seconds.get(file, UNKNOWN_S), file)):
        slot = until.index(min(until))
        until[slot] += seconds.get(file, UNKNOWN_S)
        dealt[slot].add(file)
    return [frozenset(part) for part in dealt]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One part's process after its end."""

    part: str
    code: int
    seconds: float
    took: Mapping[str, float]  # by file
    failures: Sequence[str] = ()  # pytest's short lines
    skipped: Mapping[str, int] = field(default_factory=dict)  # by reason


class _Running:
    """A process of pytest whose lines are printed with its part's number in front."""

    def __init__(self, part: str, arguments: Sequence[str], folder: Path) -> None:
        self._part = part
        self._record = folder / f"{part.partition('/')[0]}.json"
        self._record.unlink(missing_ok=True)
        self._begun = time.monotonic()
        self._ended = self._begun
        self._failures: list[str] = []
        self._skipped: Counter[str] = Counter()
        command = [sys.executable, "-m", "pytest", *arguments, "--part", part, "--record", str(self._record)]
        if has_own_host(part):
            command = namespaces.wrapped(command)
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
        )
        self._printer = threading.Thread(target=self._print)
        self._printer.start()

    def wait(self) -> Ended:
        """Wait for the end of the process and of its output."""
        code = self._process.wait()
        self._printer.join()
        took = read_seed(self._record) if self._record.exists() else {}
        return Ended(
            part=self._part,
            code=code,
            seconds=self._ended - self._begun,
            took=took,
            failures=self._failures,
            skipped=self._skipped,
        )

    def stop(self) -> None:
        """Let pytest tear its fixtures down; again is no error."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait()
        self._printer.join()

    def _print(self) -> None:
        assert self._process.stdout is not None
        prefix = self._part.partition("/")[0]
        for line in self._process.stdout:
            sys.stdout.write(f"{prefix}| {line}")
            sys.stdout.flush()
            if line.startswith(_FAILURES):
                self._failures.append(line.rstrip())
            if skipped := _SKIPPED.fullmatch(line.rstrip()):
                self._skipped[skipped[2]] += int(skipped[1])
        self._ended = time.monotonic()


def run(arguments: Sequence[str], build: Path = PROJECT / "build") -> int:
    """Run the parts side by side, then what must be alone; return the worst exit code."""
    folder = build / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    if reason := namespaces.why_not():
        print(f"--- {PARTS_OF_ONE_HOST} parts, not {PARTS}: they share this machine's network ({reason})", flush=True)
    *beside, alone = names(PARTS_OF_ONE_HOST, one_host=True) if reason else names()
    if MACHINE in beside and not _have(MACHINE_FILES, arguments):
        beside.remove(MACHINE)
    ended = _run_together(beside, arguments, folder)
    if _have(ALONE_FILES, arguments):
        ended += _run_together([alone], arguments, folder)
    took = {file: seconds for part in ended for file, seconds in part.took.items()}
    if took:
        durations.keep(build / "durations.json", took)
    for line in summary(ended, took):
        print(line)
    return exit_code([part.code for part in ended])


def exit_code(codes: Sequence[int]) -> int:
    """Return the first failure of these; a part without any tests is none, as long as another one has some."""
    failed = [code for code in codes if code not in (0, _NOTHING_COLLECTED)]
    if failed:
        return failed[0] if failed[0] > 0 else 128 - failed[0]
    return 0 if 0 in codes else _NOTHING_COLLECTED


def _run_together(parts: Sequence[str], arguments: Sequence[str], folder: Path) -> list[Ended]:
    with contextlib.ExitStack() as stack:
        running: list[_Running] = []
        for part in parts:
            running.append(_Running(part, arguments, folder))
            stack.callback(running[-1].stop)
        return [process.wait() for process in running]


def _have(files: Iterable[str], arguments: Sequence[str]) -> bool:
    """Tell whether one of these folders or files can have tests of such files."""
    paths = [argument.partition("::")[0].rstrip("/") for argument in arguments if argument.startswith("tests")]
    return not paths or any(f"{file}/".startswith(f"{path}/") for file in files for path in paths)


def summary(ended: Sequence[Ended], took: Mapping[str, float]) -> Iterator[str]:
    """Return the last lines of a run: what took long and was skipped, how each part ended, every test that failed."""
    if len(took) > 1:
        yield f"--- the {durations.SHOWN_FILES} slowest files of all parts"
        yield from durations.slowest(took)
    skipped = sum((Counter(part.skipped) for part in ended), Counter[str]())
    for reason, count in sorted(skipped.items()):
        yield f"--- skipped {count}: {reason}"
    for part in ended:
        yield f"--- part {part.part}: {part.seconds:.0f} s, exit code {part.code}"
        yield from part.failures
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield f"--- {used.ru_utime + used.ru_stime:.0f} s of processor time"


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main() -> int:
    """Run the suite as the command line says."""
    signal.signal(signal.SIGTERM, _end)
    try:
        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
