"""`python -m tests.lab`: builds the image when needed, runs the guest's tests in its machines, brings results back.

Each machine is booted in its turn and runs the tests that are for it. Everything after `--` goes to pytest in the
guest; without it, all of tests/lab/guest runs. The exit code is the first of pytest's that is not 0, or 125 when the
lab itself could not do its work. The last lines printed are pytest's summaries.
"""

import argparse
import fcntl
import shutil
import signal
import sys
from collections.abc import Iterator
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
    outcomes: dict[str, Outcome] = {}
    for model in models:
        outcomes[model.name] = run_tests(
            Run(
                model=model,
                emulator=emulators[model.name],
                image=image,
                checkout=CHECKOUT,
                results=RESULTS / model.name,
                pytest_arguments=tuple(selection or DEFAULT_SELECTION),
                limit_s=limit_s,
            )
        )
        _tell(model, outcomes[model.name])
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome.summary}", flush=True)
    return next((outcome.exit_code for outcome in outcomes.values() if outcome.exit_code), 0)


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
