"""The demo, as `make demo` starts it: `python -m tests.rig.demo`.

The story itself is a process of its own (demo_story.py), in a session of its own. So Ctrl-C in a terminal reaches this
process alone: it asks the story to stop in order, once, and clears the host afterwards even when the story was killed.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from tests.rig import cache, fabric, leftovers
from tests.rig.record import own_network, read_in_bases

_HOSTS = Path("/etc/hosts")
_TITLE = """
nri-rdma: containers get their own RDMA hardware
================================================
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Tells the story and returns its exit code: 0 all checks passed, 1 not, 128 + n after signal n."""
    parser = argparse.ArgumentParser(prog="python -m tests.rig.demo", description="A real containerd starts four pods.")
    parser.add_argument(
        "--check-against", metavar="NODE.toml", help="the description to check against, if not the one that was built"
    )
    parser.add_argument("--keep", action="store_true", help="no story, but a prompt on its node")
    chosen = parser.parse_args(arguments)
    if problem := _problem():
        print(f"demo: {problem}", file=sys.stderr)
        return 1
    print(_TITLE, flush=True)
    story = _Story(["--check-against", chosen.check_against] if chosen.check_against else [])
    sweep()
    others = [it["run"] for it in read_in_bases("nrirdma-fabric-*/fabric.json") if it["network"] == own_network()]
    if others:
        print(f"demo: a test run or another demo is under way ({others[0]}). Next: wait for its end.", file=sys.stderr)
        return 1
    code = story.tell() if not chosen.keep else _prompt()
    sweep()
    return code


def _prompt() -> int:
    """Has the terminal's shell be on the node; Ctrl-C is the shell's."""
    process = subprocess.Popen([sys.executable, "-m", "tests.rig.demo_prompt"], cwd=cache.PROJECT)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda given, _frame: None if given == signal.SIGINT else process.terminate())
    return process.wait()


def sweep() -> None:
    """Removes what demos and rigs left whose process was killed."""
    leftovers.sweep()
    fabric.sweep()


class _Story:
    """The process that tells, and the signals that end it early."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._command = [sys.executable, "-m", "tests.rig.demo_story", *arguments]
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped_by = 0
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def tell(self) -> int:
        self._process = subprocess.Popen(self._command, cwd=cache.PROJECT, start_new_session=True)
        if self._stopped_by:
            self._process.terminate()
        code = self._process.wait()
        if self._stopped_by:
            return 128 + self._stopped_by
        return code if code >= 0 else 128 - code

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._stopped_by:
            return  # it is being done
        self._stopped_by = number
        if self._process is not None:
            # Not SIGINT: while the story is still being imported that would print where.
            self._process.terminate()


def _problem() -> str:
    if sys.platform != "linux":
        return "it needs Linux. Next: run it on Debian 12 or 13."
    if os.geteuid() != 0:
        return "it needs root: it makes links, device nodes and containers. Next: sudo make demo"
    if missing := cache.missing():
        return f"{missing[0]} is missing. Next: make setup"
    if not _HOSTS.exists():
        return f"this machine has no {_HOSTS}, which each pod gets. Next: write `127.0.0.1 localhost` into it."
    return ""


if __name__ == "__main__":
    sys.exit(main())
