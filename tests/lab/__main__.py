"""`python -m tests.lab`: builds the image when needed, runs the guest's tests in its machines, brings results back.

Each machine runs the tests that are for it, at most two machines at a time; the one that takes longest runs them in
two shares. Everything after `--` goes to pytest in the guest; without it, all of tests/lab/guest runs. The exit code is
the first of pytest's that is not 0, or 125 when the lab itself could not do its work. The last lines printed are
pytest's summaries, one for each machine.
"""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.lab import outcomes, reports, shares
from tests.lab.bytecode import FOLDER as BYTECODE
from tests.lab.emulator import FOLDER as EMULATOR
from tests.lab.emulator import ensure_emulator
from tests.lab.errors import LabError
from tests.lab.image import Image, ensure_image
from tests.lab.machine import ACCELERATORS, MODELS, SMALL, Model
from tests.lab.progress import say
from tests.lab.recipe import CHECKOUT, DEFAULT_KERNEL, KERNELS, recipe_for
from tests.lab.reports import RESULTS
from tests.lab.shares import Part
from tests.lab.tools import ensure_tools
from tests.lab.vm import Outcome, Run, run_shell, run_tests

CACHE = CHECKOUT / ".cache" / "lab"
LIMIT_S = 3000
"""The longest run of a machine took 17 minutes on a slow host."""
SIDE_BY_SIDE = 2
"""Machines at a time. An emulated machine of two CPUs keeps a core busy, and waits much: two take less time together
than one after the other on two cores; four take longer, and miss time-outs."""
HOW_SHOWN = ("-v", "--tb=short", "--maxfail=5")
"""A machine in which much fails is broken, and would fail slowly: each test waits for its time-out."""
_NO_TESTS_RAN = 5
LAB_FAILED = 125
INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """The process's exit code."""
    own, _, selection = _split(arguments)
    options = _parser().parse_args(own)
    if options.core:
        selection = [*HOW_SHOWN, *(f"{shares.GUEST}/{name}" for name in shares.CORE), *selection]
    signal.signal(signal.SIGTERM, _end)
    try:
        with _only_run(CACHE):
            _remove_unknown(CACHE)
            ensure_tools()
            image = ensure_image(recipe_for(options.kernel), CACHE)
            models = [replace(it, accelerator=options.accel) for it in _chosen(options.machine, selection)]
            if options.shell:
                return run_shell(models[0], ensure_emulator(CACHE), image, CHECKOUT)
            return _run_on(models, image, selection, options.limit)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return LAB_FAILED
    except KeyboardInterrupt:
        print("lab: interrupted, the machine is gone", file=sys.stderr)
        return INTERRUPTED


def _chosen(names: list[str] | None, selection: list[str]) -> list[Model]:
    """The machines that were named; without any, all for all tests, and for a selection the small one."""
    if names:
        return [MODELS[name] for name in dict.fromkeys(names)]
    return [SMALL] if selection else list(MODELS.values())


def _run_on(models: list[Model], image: Image, selection: list[str], limit_s: int) -> int:
    """The exit code; every part runs, whatever another one's tests said."""
    emulator = ensure_emulator(CACHE)
    slots = max(1, min(SIDE_BY_SIDE, os.cpu_count() or 1))
    parts = _parts(models, slots, selection)
    reports.remove_results({model.name for model in models})
    stop = threading.Event()
    runs = [
        Run(
            model=part.model,
            name=part.name,
            emulator=emulator,
            image=image,
            checkout=CHECKOUT,
            results=RESULTS / part.name,
            bytecode=CACHE / BYTECODE,
            pytest_arguments=part.selection,
            limit_s=limit_s,
            label=part.name if len(parts) > 1 else "",
            stop=stop,
        )
        for part in parts
    ]
    with ThreadPoolExecutor(max_workers=slots) as pool:
        under_way = {pool.submit(run_tests, run): part for run, part in zip(runs, parts, strict=True)}
        try:
            endings = _follow(under_way)
        finally:
            stop.set()  # interrupted: nobody waits for what still runs
            pool.shutdown(cancel_futures=True)
    in_order = [(part, endings[part.name]) for model in models for part in parts if part.model is model]
    everything = not selection and {model.name for model in models} == set(MODELS)
    return _judge(in_order, outcomes.load() if everything else ())


def _parts(models: list[Model], slots: int, selection: list[str]) -> tuple[Part, ...]:
    """What runs, in the order in which it is begun: a selection on each machine as it is."""
    if selection:
        return tuple(Part(model=model, name=model.name, selection=tuple(selection), seconds=0.0) for model in models)
    parts = shares.plan(models, slots, shares.guest_files(), shares.load())
    say("in this order: " + ", ".join(f"{part.name} (about {part.seconds:.0f} s)" for part in parts))
    return tuple(replace(part, selection=(*HOW_SHOWN, *part.selection)) for part in parts)


def _follow(under_way: dict[Future[Outcome], Part]) -> dict[str, Outcome | LabError]:
    """How each part's run ended, told as it ends."""
    endings: dict[str, Outcome | LabError] = {}
    for future in as_completed(under_way):
        part = under_way[future]
        try:
            endings[part.name] = outcome = future.result()
        except LabError as error:
            endings[part.name] = error
            say(f"{part.name}: {error}")
        else:
            _tell(part, outcome)
    return endings


def _judge(endings: list[tuple[Part, Outcome | LabError]], rows: Iterable[str]) -> int:
    """The exit code of all: the lab's own, else pytest's first that is not 0. Each of the rows must have been met."""
    broken = [part.name for part, ending in endings if isinstance(ending, LabError)]
    reports.join_reports(part.name for part, _ in endings)
    cases = reports.read_cases()
    failures = [*reports.failures(cases), *(told for name in broken for told in reports.failures_so_far(name))]
    complaints = list(reports.complaints(cases, () if failures or broken else rows))
    for told in (*failures, *complaints):
        say(told)
    for machine, group in groupby(endings, key=lambda item: item[0].model.name):
        _sum_up(machine, list(group))
    if broken or complaints:
        return LAB_FAILED
    codes = (ending.exit_code for _, ending in endings if isinstance(ending, Outcome))
    return next((code for code in codes if code), 0)


def _sum_up(machine: str, endings: list[tuple[Part, Outcome | LabError]]) -> None:
    """A machine's last line: its shares as one, or each alone where one of them has no summary."""
    summaries = [ending.summary for _, ending in endings if isinstance(ending, Outcome)]
    if len(summaries) == len(endings):
        print(f"{machine}: {reports.joined(summaries)}", flush=True)
        return
    for part, ending in endings:
        print(f"{part.name}: {ending if isinstance(ending, LabError) else ending.summary}", flush=True)


def _tell(part: Part, outcome: Outcome) -> None:
    again = f", boot attempts {outcome.boot_attempts}" if outcome.boot_attempts > 1 else ""
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.seconds.items())
    say(f"{part.name}: {spent}{again}; junit.xml and logs in {(RESULTS / part.name).relative_to(CHECKOUT)}/")
    if outcome.exit_code == _NO_TESTS_RAN:
        say("no test of that selection is this machine's; name another with --machine")


def _split(arguments: list[str]) -> tuple[list[str], str, list[str]]:
    if "--" not in arguments:
        return arguments, "", []
    at = arguments.index("--")
    return arguments[:at], "--", arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.lab",
        description="Runs the lab's tests in a virtual machine. What follows -- is handed to pytest in there.",
        epilog="example: python -m tests.lab -- -v -k memlock tests/lab/guest",
    )
    parser.add_argument("--shell", action="store_true", help="a shell on the machine's console instead of tests")
    parser.add_argument(
        "--core", action="store_true", help="only the tests of every run of CI, some minutes of the small machine"
    )
    parser.add_argument(
        "--kernel", choices=KERNELS, default=DEFAULT_KERNEL, help="Debian's kernel to boot (default: %(default)s)"
    )
    parser.add_argument(
        "--machine",
        choices=tuple(MODELS),
        action="append",
        help="which machine, may be given several times (default: all, or small when tests are selected)",
    )
    parser.add_argument(
        "--accel", choices=tuple(ACCELERATORS), default="tcg", help="QEMU's accelerator (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT_S,
        metavar="SECONDS",
        help="hard limit for each machine (default: %(default)s)",
    )
    return parser


@contextmanager
def _only_run(cache: Path) -> Iterator[None]:
    """One lab per checkout at a time: image cache and results folder have one writer."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another lab run is under way in this checkout; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_unknown(cache: Path) -> None:
    """Images of kernels that the lab no longer has, and what a killed run or an earlier layout left."""
    for folder in cache.iterdir():
        if folder.is_dir() and folder.name not in {*KERNELS, EMULATOR, BYTECODE}:
            shutil.rmtree(folder)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
