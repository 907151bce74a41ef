"""`python -m tests.lab`: builds the image when needed, runs the guest's tests in its machines, brings results back.

Each machine runs the tests that are for it, at most two machines at a time. Everything after `--` goes to pytest in the
guest; without it, all of tests/lab/guest runs. The exit code is the first of pytest's that is not 0, or 125 when the
lab itself could not do its work. The last lines printed are pytest's summaries.
"""

import argparse
import fcntl
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.lab.emulator import FOLDER as EMULATOR
from tests.lab.emulator import ensure_emulator
from tests.lab.errors import LabError
from tests.lab.image import Image, ensure_image
from tests.lab.machine import ACCELERATORS, MODELS, SMALL, Model
from tests.lab.progress import say
from tests.lab.recipe import CHECKOUT, DEFAULT_KERNEL, KERNELS, recipe_for
from tests.lab.tools import ensure_tools
from tests.lab.vm import Outcome, Run, run_shell, run_tests

CACHE = CHECKOUT / ".cache" / "lab"
RESULTS = CHECKOUT / "build" / "lab"
LIMIT_S = 1200
SIDE_BY_SIDE = 2
"""Machines at a time. An emulated machine of two CPUs keeps a core busy, and waits much: two take less time together
than one after the other on two cores; four take longer, and miss time-outs."""
DEFAULT_SELECTION = ["-v", "--tb=short", "tests/lab/guest"]
_NO_TESTS_RAN = 5
LAB_FAILED = 125
INTERRUPTED = 130


def main(arguments: list[str]) -> int:
    """The process's exit code."""
    own, _, selection = _split(arguments)
    options = _parser().parse_args(own)
    signal.signal(signal.SIGTERM, _end)
    try:
        with _only_run(CACHE):
            _remove_unknown(CACHE)
            ensure_tools()
            image = ensure_image(recipe_for(options.kernel), CACHE)
            models = [replace(it, accelerator=options.accel) for it in _chosen(options.machine, selection)]
            if options.shell:
                return run_shell(models[0], ensure_emulator(models[0].oldest_qemu, CACHE), image, CHECKOUT)
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
    """The exit code; every machine runs, whatever another one's tests said."""
    emulators = {model.name: ensure_emulator(model.oldest_qemu, CACHE) for model in models}
    stop = threading.Event()
    runs = [
        Run(
            model=model,
            emulator=emulators[model.name],
            image=image,
            checkout=CHECKOUT,
            results=RESULTS / model.name,
            pytest_arguments=tuple(selection or DEFAULT_SELECTION),
            limit_s=limit_s,
            label=model.name if len(models) > 1 else "",
            stop=stop,
        )
        for model in models
    ]
    with ThreadPoolExecutor(max_workers=max(1, min(SIDE_BY_SIDE, os.cpu_count() or 1))) as pool:
        under_way = {pool.submit(run_tests, run): run.model for run in runs}
        try:
            endings = _follow(under_way)
        finally:
            stop.set()  # interrupted: nobody waits for what still runs
            pool.shutdown(cancel_futures=True)
    return _judge({model.name: endings[model.name] for model in models})


def _follow(under_way: dict[Future[Outcome], Model]) -> dict[str, Outcome | LabError]:
    """How each machine's run ended, told as it ends."""
    endings: dict[str, Outcome | LabError] = {}
    for future in as_completed(under_way):
        model = under_way[future]
        try:
            endings[model.name] = outcome = future.result()
        except LabError as error:
            endings[model.name] = error
            say(f"{model.name}: {error}")
        else:
            _tell(model, outcome)
    return endings


def _judge(endings: dict[str, Outcome | LabError]) -> int:
    """The exit code of all: the lab's own, else pytest's first that is not 0."""
    code = 0
    for name, ending in endings.items():
        if isinstance(ending, LabError):
            print(f"{name}: {ending}", flush=True)
        else:
            print(f"{name}: {ending.summary}", flush=True)
            code = code or ending.exit_code
    return LAB_FAILED if any(isinstance(ending, LabError) for ending in endings.values()) else code


def _tell(model: Model, outcome: Outcome) -> None:
    again = f", boot attempts {outcome.boot_attempts}" if outcome.boot_attempts > 1 else ""
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.seconds.items())
    say(f"{model.name}: {spent}{again}; junit.xml and logs in {(RESULTS / model.name).relative_to(CHECKOUT)}/")
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
        if folder.is_dir() and folder.name not in {*KERNELS, EMULATOR}:
            shutil.rmtree(folder)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
