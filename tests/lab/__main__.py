"""`python -m tests.lab`: builds the machine's image when needed, runs the guest's tests in it, brings results back.

Everything after `--` goes to pytest in the guest; without it, all of tests/lab/guest runs. The exit code is pytest's,
or 125 when the lab itself could not do its work. The last line printed is pytest's summary.
"""

import argparse
import fcntl
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from tests.lab.errors import LabError
from tests.lab.image import ensure_image
from tests.lab.progress import say
from tests.lab.recipe import CHECKOUT, DEFAULT_KERNEL, KERNELS, recipe_for
from tests.lab.tools import ensure_tools
from tests.lab.vm import run_shell, run_tests

CACHE = CHECKOUT / ".cache" / "lab"
RESULTS = CHECKOUT / "build" / "lab"
LIMIT_S = 600
DEFAULT_SELECTION = ["-v", "--tb=short", "tests/lab/guest"]
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
            if options.shell:
                return run_shell(image, CHECKOUT)
            outcome = run_tests(image, CHECKOUT, RESULTS, selection or DEFAULT_SELECTION, options.limit)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return LAB_FAILED
    except KeyboardInterrupt:
        print("lab: interrupted, the machine is gone", file=sys.stderr)
        return INTERRUPTED
    again = f", boot attempts {outcome.boot_attempts}" if outcome.boot_attempts > 1 else ""
    spent = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in outcome.seconds.items())
    say(f"{spent}{again}; junit.xml and logs in {RESULTS.relative_to(CHECKOUT)}/")
    print(outcome.summary, flush=True)
    return outcome.exit_code


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
        "--limit", type=int, default=LIMIT_S, metavar="SECONDS", help="hard limit (default: %(default)s)"
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
    """Images of kernels that the lab no longer has, and those of its earlier layout."""
    for folder in cache.iterdir():
        if folder.is_dir() and folder.name not in KERNELS:
            shutil.rmtree(folder)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
