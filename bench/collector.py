"""How long CreateContainer takes beside a collector that does not take spans: one that is away, slow, or refuses.

The floor is the same daemon that sends its spans to nobody. `python -m bench.collector STATE` is the collector: it
prints its address and serves until its input ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: a part of the status document

import grpc

from bench.driver import DEFAULT, FLOOR, Case, asking_pod, measure
from bench.figures import Row, paired_row
from bench.messages import create_container, run_pod
from bench.peer import Listener
from bench.pods import accepted, refuse_error
from bench.processes import Place, on_one_cpu, resident_kib, started
from nri_rdma.doors.control.daemon_client import ask_status
from tests.rig.collector import Collector

TAKES, AWAY, SLOW, UNAVAILABLE, EXHAUSTED = "takes them", "is away", "is slow", "is unavailable", "is exhausted"
STATES = (TAKES, AWAY, SLOW, UNAVAILABLE, EXHAUSTED)
_REFUSALS = {UNAVAILABLE: grpc.StatusCode.UNAVAILABLE, EXHAUSTED: grpc.StatusCode.RESOURCE_EXHAUSTED}
SLOW_S = 3.0
"""How long the slow one takes for a batch."""
TARGET = 1.05
GROWN_MIB = 12.0
"""It levels out at 6 to 8 MiB: a batch under way is there as spans of ours, the SDK's and protobuf's."""
REST_S = 0.02
FILL_EVENTS = 5000
"""Events of two spans each that fill, where nothing is taken, the queue with 4,096, and then the ring with others."""
US_PER_NS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What was measured beside one collector; `traces` is what the daemon's status document says of its spans."""

    row: Row
    grown_kib: int
    """What the daemon's memory grew by, after ring and queue were full."""
    traces: Mapping[str, Any]


def rows(folder: Path, rounds: int, events: int) -> list[Row]:
    """The ratios, and how much memory grew. The network namespace is the bench's own."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    found = beside(folder, rounds, events)
    grown = [
        Row(
            figure=f"{it.row.figure}, memory grown",
            value=it.grown_kib / 1024,
            unit="MiB",
            floor=0,
            ratio=0,
            limit=GROWN_MIB,
        )
        for it in found.values()
    ]
    return [*(it.row for it in found.values()), *grown]


def beside(folder: Path, rounds: int, events: int) -> dict[str, Beside]:
    """A daemon for each state of a collector, and one without, in alternating rounds. Raises RuntimeError when a
    collector does not do what its state says."""
    place = Place(folder)
    call = create_container(asking_pod(), traced=True)
    cases = [
        Case(name=f"create, collector {state}", call=call, ours=state, devices=1, rest_s=REST_S) for state in STATES
    ]
    with ExitStack() as stack:
        addresses = {state: stack.enter_context(_collector(state, folder)) for state in STATES}
        stack.enter_context(on_one_cpu())  # the reason is in bench/__main__.py
        peers, pids = {}, {}
        for number, name in enumerate((FLOOR, *STATES)):
            plugin = f"{DEFAULT}-{number}"
            listener = stack.enter_context(Listener(place.socket(plugin)))
            settings = _settings(addresses[name]) if name in addresses else None
            command = place.daemon_command(plugin)
            process = stack.enter_context(started(command, folder / f"{plugin}.log", settings=settings))
            peer = peers[name] = accepted(listener, process)
            stack.callback(peer.close)
            peer.wait_for_registration()
            peer.activate()
            refuse_error(peer.call(run_pod(asking_pod())))
            pids[name] = process.pid
        for peer in peers.values():
            for _ in range(FILL_EVENTS):
                peer.call(call)
        time.sleep(1.0)  # until they are converted
        before = {name: resident_kib(pid) for name, pid in pids.items()}
        measured = measure(peers, cases, rounds, events)
        grown = {name: resident_kib(pid) - before[name] for name, pid in pids.items()}
        traces = {
            state: ask_status(place.control_socket(f"{DEFAULT}-{number}"))["traces"]
            for number, state in enumerate(STATES, start=1)
        }
    found: dict[str, Beside] = {}
    for state, its in zip(STATES, measured, strict=True):
        floor, ours = its["floor"], its["ours"]
        row = paired_row(str(its["case"]), floor, ours, unit="us", scale=US_PER_NS, target=TARGET)
        found[state] = Beside(row=row, grown_kib=grown[state], traces=traces[state])
        if not traces[state]["exported" if state == TAKES else "dropped"]:
            raise RuntimeError(f"the collector {state}, and the daemon says: {traces[state]}")
    return found


def _settings(address: str) -> dict[str, str]:
    return {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{address}",
    }


@contextmanager
def _collector(state: str, folder: Path) -> Iterator[str]:
    """A collector in a process of its own: it shares no interpreter with what is timed. Gives its address."""
    command = [sys.executable, "-m", "bench.collector", state]
    with started(command, folder / "collector.log", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()


def main() -> None:
    """Serve in one of the states until the input ends."""
    state = sys.argv[1]
    with Collector() as collector:
        collector.refusal = _REFUSALS.get(state)
        collector.delay_s = SLOW_S if state == SLOW else 0.0
        if state == AWAY:
            collector.close()
        sys.stdout.write(f"{collector.address}\n")
        sys.stdout.flush()
        os.read(0, 1)


if __name__ == "__main__":
    main()
