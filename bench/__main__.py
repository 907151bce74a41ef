"""`python -m bench`: measures, prints a table, writes build/bench.json; ends with 1 when a target is missed.

It starts itself again in a network and a mount namespace of its own, and without root in a user namespace too: the
daemon enters namespaces, which the bench makes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: the driver's JSON

from bench import (
    attach,
    claims,
    collector,
    inherited,
    metrics,
    network,
    placement,
    quiet,
    recovery,
    shares,
    start,
    synchronize,
)
from bench.driver import DEFAULT, EXPORTING, FLOOR, RESULT, UNTRACED
from bench.figures import Row, exit_code, p99_row, paired_row, table
from bench.moves import compile_moves
from bench.peer import TIMEOUT_S
from bench.processes import Place, on_one_cpu, resident_kib, started
from nri_rdma.doors.control.daemon_client import ask_trace

REPORT = Path("build/bench.json")
TARGETS = {"sandbox event": 1.5, "create, tracing off": 2.0, "create, tracing on": 2.5, "create, exporting": 2.5}
SETTINGS = {UNTRACED: {"NRI_RDMA_TRACING": "false"}, EXPORTING: {"OTEL_TRACES_EXPORTER": "console"}}
"""Environment of the daemons; the console exporter makes every span an SDK span and writes it, here to /dev/null."""
US_PER_NS = 1e-3
OWN = "NRI_RDMA_BENCH_HAS_NAMESPACES"
LOG_BYTES = 20_000
"""Of each log, when something went wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How often what is done."""

    rounds: int
    events: int
    starts: int
    attaches: int


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="bench", description="Measures the product beside a floor.")
    parser.add_argument("--rounds", type=int, default=60, help="alternating rounds per event")
    parser.add_argument("--events", type=int, default=50, help="events per round and side")
    parser.add_argument("--starts", type=int, default=11, help="alternating starts")
    parser.add_argument("--attaches", type=int, default=5, help="alternating rounds of attaches and of recoveries")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="only this part; may be given several times")
    given = parser.parse_args()
    _become_root()
    options = Options(rounds=given.rounds, events=given.events, starts=given.starts, attaches=given.attaches)
    rows: list[Row] = []
    place = _IN_MEMORY if _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="nri-rdma-bench-", dir=place) as folder:
        try:
            if {"attach", "network"}.intersection(given.only or SECTIONS):
                compile_moves(Path(folder))  # without a compiler this is told at once, not after minutes of other parts
            for name, measure in SECTIONS.items():
                if name in (given.only or SECTIONS):
                    (work := Path(folder, name)).mkdir()
                    rows += measure(work, options)
        except (OSError, ValueError, RuntimeError) as error:
            for log in sorted(Path(folder).rglob("*.log")):
                sys.stderr.write(f"--- {log.name}\n{log.read_text()[-LOG_BYTES:]}")
            sys.stderr.write(f"bench: {error}\n")
            return 1
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps([row.document() for row in rows], indent=1) + "\n")
    print(table(rows))
    return exit_code(rows)


def _become_root() -> None:
    if os.environ.get(OWN) == "1":
        return
    unshare = shutil.which("unshare")
    if unshare is None:
        sys.exit("bench: it needs unshare (util-linux). Next: apt-get install util-linux.")
    os.environ[OWN] = "1"
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [unshare, *user, "--net", "--mount", sys.executable, "-m", "bench", *sys.argv[1:]]
    os.execv(unshare, command)


def _events(folder: Path, options: Options) -> list[Row]:
    place = Place(folder)
    rows, memory_mib = event_rows(place, options.rounds, options.events)
    rows += start.rows(place, options.starts)
    bare = rows[-1].floor
    memory = Row(figure="memory after the events", value=memory_mib, unit="MiB", floor=bare, ratio=memory_mib / bare)
    return [*rows, memory]


_IN_MEMORY = Path("/dev/shm")
"""The journals of a node are in memory, too: in /run."""
SECTIONS: Mapping[str, Callable[[Path, Options], list[Row]]] = {
    "events": _events,
    "synchronize": lambda folder, options: synchronize.rows(Place(folder), 4 * options.attaches),
    "shares": lambda folder, options: shares.rows(Place(folder), options.rounds, options.events),
    "claims": lambda folder, options: claims.rows(Place(folder), options.rounds, options.events),
    "placement": lambda _folder, options: placement.rows(options.rounds),
    "attach": lambda folder, options: attach.rows(folder, options.attaches),
    "network": lambda folder, options: [
        *network.rows(folder, options.attaches),
        *inherited.rows(folder, options.attaches),
    ],
    "collector": lambda folder, options: collector.rows(folder, options.rounds, options.events),
    "metrics": lambda folder, options: metrics.rows(folder, options.rounds, options.events),
    "quiet": lambda folder, options: quiet.rows(folder, max(2, options.attaches // 2)),
    "recovery": lambda folder, options: recovery.rows(folder, max(2, options.attaches // 2)),
}


def event_rows(place: Place, rounds: int, events: int) -> tuple[list[Row], float]:
    """The driver, the floor and two daemons, all running; only one of them works at a time.

    All on one CPU: on two, the scheduler moves a pair together or apart as it likes, and waking a sleeping CPU costs
    more than the whole answer (20 us here), for whole rounds of one side. The second value is the default daemon's
    memory in MiB afterwards.
    """
    names = (FLOOR, DEFAULT, UNTRACED, EXPORTING)
    command = [sys.executable, "-m", "bench.driver", str(place.folder), str(rounds), str(events), *names]
    with ExitStack() as stack:
        stack.enter_context(on_one_cpu())
        driver = stack.enter_context(started(command, place.folder / "driver.log"))
        _wait_for_sockets(place, names, driver)
        plugins = {
            name: stack.enter_context(
                started(
                    place.floor_command(name) if name == FLOOR else place.daemon_command(name),
                    place.folder / f"{name}.log",
                    settings=SETTINGS.get(name),
                )
            )
            for name in names
        }
        _wait_for_result(place, driver, plugins)
        memory = resident_kib(plugins[DEFAULT].pid, "VmHWM") / 1024
        _check_tracing(place)  # after that: its answer, all spans as one text, takes more memory than the events did
    measured = json.loads((place.folder / RESULT).read_text())
    return [row for case in measured for row in _rows_of(case)], memory


def _rows_of(measured: dict[str, Any]) -> list[Row]:
    name, floor, ours = measured["case"], measured["floor"], measured["ours"]
    its, mine = measured["floor_cpu_ns"], measured["ours_cpu_ns"]
    return [
        paired_row(name, floor, ours, unit="us", scale=US_PER_NS, target=TARGETS.get(name)),
        p99_row(f"{name}, p99", floor, ours, scale=US_PER_NS),
        Row(figure=f"{name}, CPU", value=mine * US_PER_NS, unit="us", floor=its * US_PER_NS, ratio=mine / its),
    ]


def _wait_for_sockets(place: Place, names: tuple[str, ...], driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not all(place.socket(name).exists() for name in names):
        if driver.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the driver does not listen")
        time.sleep(0.01)


def _wait_for_result(
    place: Place, driver: subprocess.Popen[bytes], plugins: dict[str, subprocess.Popen[bytes]]
) -> None:
    while driver.poll() is None:
        ended = [name for name, plugin in plugins.items() if plugin.poll() is not None]
        if ended and not (place.folder / RESULT).exists():  # with a result they end because the driver does
            raise RuntimeError(f"the process of {ended[0]} ended")
        time.sleep(0.2)
    if driver.returncode:
        raise RuntimeError("the driver failed")


def _check_tracing(place: Place) -> None:
    """Tracing on means spans in the ring, off means none: otherwise the rows compare a thing with itself."""
    if not ask_trace(place.control_socket(DEFAULT), "")["spans"]:
        raise RuntimeError("the daemon with tracing on recorded no span")
    if ask_trace(place.control_socket(UNTRACED), "")["spans"]:
        raise RuntimeError("the daemon with tracing off recorded spans: the setting `tracing` does nothing")


if __name__ == "__main__":
    sys.exit(main())
