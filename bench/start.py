"""How long a start takes and how much memory a started process has, in alternating starts."""

from __future__ import annotations

import subprocess
import time

from bench.figures import Row, paired_row
from bench.peer import Listener
from bench.processes import Place, bare_command, resident_kib, started

SECONDS_TARGET, MEMORY_TARGET = 2.0, 1.6


def rows(place: Place, runs: int) -> list[Row]:
    """Exec-to-registered beside exec-to-imported, and the memory of both, each the median of `runs`."""
    _bare(place)  # once unmeasured: byte code and the page cache
    _daemon(place)
    pairs = [(_bare(place), _daemon(place)) for _ in range(runs)]
    seconds = [([bare[0]], [daemon[0]]) for bare, daemon in pairs]
    memory = [([float(bare[1])], [float(daemon[1])]) for bare, daemon in pairs]
    return [
        paired_row(
            "start to registered",
            [its for its, _ in seconds],
            [mine for _, mine in seconds],
            unit="ms",
            scale=1e3,
            target=SECONDS_TARGET,
        ),
        paired_row(
            "memory when registered",
            [its for its, _ in memory],
            [mine for _, mine in memory],
            unit="MiB",
            scale=1 / 1024,
            target=MEMORY_TARGET,
        ),
    ]


def _bare(place: Place) -> tuple[float, int]:
    begin = time.perf_counter()
    with started(bare_command(), place.folder / "bare.log", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if process.stdout.read(1) != b"x":
            raise ValueError("the bare process could not import")
        seconds = time.perf_counter() - begin
        return seconds, resident_kib(process.pid, "VmHWM")


def _daemon(place: Place) -> tuple[float, int]:
    """VmHWM, which is never less than VmRSS, after the whole handshake."""
    name = "start"
    with Listener(place.socket(name, again=True)) as listener:
        begin = time.perf_counter()
        with started(place.daemon_command(name), place.folder / f"{name}.log") as process:
            peer = listener.accept()
            peer.wait_for_registration()
            seconds = time.perf_counter() - begin
            peer.activate()
            memory = resident_kib(process.pid, "VmHWM")
            peer.close()
            return seconds, memory
