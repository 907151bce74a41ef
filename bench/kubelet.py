"""`python -m bench.kubelet`: the kubelet's PodResources client beside bare gRPC calls, against a fake kubelet.

The fake one is a process of its own, in Python: what is told is what the client adds, not how fast a kubelet is.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc

from bench.figures import Row, p99_row, paired_row, table
from nri_rdma.host.kubelet.podresources import PodResources
from tests.rig.kubelet import SERVICE, Mode, text

PODS = 250
POD = ("training", f"job-{PODS // 2}")
US_PER_NS = 1e-3


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="bench.kubelet", description="Measures the PodResources client.")
    parser.add_argument("--rounds", type=int, default=40, help="alternating rounds")
    parser.add_argument("--calls", type=int, default=50, help="calls per round and side")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # as in bench: two CPUs measure the scheduler
    rows = [row for mode in (Mode.ANSWERS, Mode.GET_OFF) for row in measure(mode, options.rounds, options.calls)]
    print(table(rows))
    return 0


def measure(mode: Mode, rounds: int, calls: int) -> list[Row]:
    """The client with a kubelet of that mode, and the one call that it makes there, bare."""
    method, request = ("Get", text(1, POD[1]) + text(2, POD[0])) if mode is Mode.ANSWERS else ("List", b"")
    with kubelet(mode) as path, grpc.insecure_channel(f"unix:{path}") as channel:
        bare = channel.unary_unary(f"/{SERVICE}/{method}")
        client = PodResources(path)
        client.warm()
        floor, ours = [], []
        for _ in range(rounds):
            floor.append(timed(lambda: bare(request, timeout=1.0), calls))
            ours.append(timed(lambda: client.of_pod(*POD), calls))
        client.close()
    figure = f"of_pod by {method}, {PODS} pods"
    return [
        paired_row(figure, floor, ours, unit="us", scale=US_PER_NS),
        p99_row(f"{figure}, p99", floor, ours, scale=US_PER_NS),
    ]


def timed(call: Callable[[], object], calls: int) -> list[int]:
    """Nanoseconds of each call; one goes before, which finds the other side's caches."""
    call()
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return times


@contextmanager
def kubelet(mode: Mode) -> Iterator[Path]:
    """The socket of a fake kubelet."""
    command = [sys.executable, "-m", "tests.rig.kubelet", "--pods", str(PODS), "--mode", mode]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield Path(process.stdout.readline().strip())
        process.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
