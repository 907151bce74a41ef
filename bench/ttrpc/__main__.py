"""`python -m bench.ttrpc`: unary calls of every two makes, beside gRPC's; a table, and build/ttrpc-bench.json."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from google.protobuf.wrappers_pb2 import BytesValue

from bench.ttrpc.figures import Measured, Skipped, rows, table
from bench.ttrpc.processes import GO, ClientProcess, EndError, client, server
from tests.interop import golang

REPORT = Path("build/ttrpc-bench.json")
PAIRS = (("ours", "ours"), ("asyncio", "asyncio"), ("ours", GO), (GO, "ours"), (GO, GO), ("grpcio", "grpcio"))
"""Who calls whom."""
REFERENCE = "grpcio calls grpcio"
CALLS = {100: 100, 4 << 10: 100, 1 << 20: 10}
"""Bytes of payload -> calls in a round."""


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="bench.ttrpc", description="Measures the ttrpc library beside others.")
    parser.add_argument("--rounds", type=int, default=20, help="rounds for each size, each pair once in a round")
    rounds = parser.parse_args().rounds
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # as in bench: two CPUs measure the scheduler
    with tempfile.TemporaryDirectory(prefix="ttrpc-bench-") as folder, ExitStack() as stack:
        try:
            clients, skipped = start(stack, Path(folder))
            measured = [row for size, calls in CALLS.items() for row in measure(clients, size, calls, rounds)]
        except (EndError, OSError) as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    REPORT.parent.mkdir(exist_ok=True)
    documents = [row.document() for row in measured] + [pair.document() for pair in skipped]
    REPORT.write_text(json.dumps(documents, indent=1) + "\n")
    print(table(measured, skipped, REFERENCE))
    return 0


def start(stack: ExitStack, folder: Path) -> tuple[dict[str, ClientProcess], list[Skipped]]:
    """The clients of all pairs, each with its server, and the pairs that this machine cannot have."""
    clients: dict[str, ClientProcess] = {}
    skipped: list[Skipped] = []
    for caller, callee in PAIRS:
        name, path = f"{caller} calls {callee}", folder / f"{caller}-{callee}"
        try:
            stack.enter_context(server(callee, path))
            clients[name] = stack.enter_context(client(caller, path))
        except golang.MissingError as missing:
            skipped.append(Skipped(pair=name, reason=str(missing)))
    return clients, skipped


def measure(clients: dict[str, ClientProcess], size: int, calls: int, rounds: int) -> list[Measured]:
    """Rounds in which each pair has its turn, so that what disturbs one disturbs all; the first round is for warmth."""
    payload = BytesValue(value=bytes(size)).SerializeToString()
    took: dict[str, list[list[float]]] = {name: [] for name in clients}
    for _ in range(rounds + 1):
        for name, process in clients.items():
            took[name].append([float(value) for value in process.measure(payload, calls)])
    return rows({name: its[1:] for name, its in took.items()}, size, REFERENCE)


if __name__ == "__main__":
    sys.exit(main())
