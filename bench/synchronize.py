"""How long the runtime waits for the answer to a Synchronize of a full node."""

from __future__ import annotations

import time
from contextlib import ExitStack

from bench.driver import FLOOR
from bench.figures import Row, p99_row, paired_row
from bench.messages import ANNOTATION, ONE_SHARED, Call, container, pod, run_pod, synchronize
from bench.peer import Peer
from bench.pods import refuse_error
from bench.processes import Place, await_rest
from bench.rounds import connected

PODS, CONTAINERS_EACH, OURS = 200, 5, 20
LIMIT_MS = 100.0
MS_PER_NS = 1e-6
NAME = "synchronized"
SETTLED_S = 60.0


def rows(place: Place, rounds: int) -> list[Row]:
    """Of 1,000 containers in 200 pods, 20 of which have devices of ours, beside a responder that only decodes."""
    with ExitStack() as stack:
        floor = connected(stack, place, FLOOR, place.floor_command(FLOOR))
        ours = connected(stack, place, NAME, place.daemon_command(NAME))
        pods = [pod(number, {ANNOTATION: ONE_SHARED} if number <= OURS else None) for number in range(1, PODS + 1)]
        for message in pods[:OURS]:
            refuse_error(ours.call(run_pod(message)))
        call = synchronize(pods, [container(it, f"c{at}") for it in pods for at in range(CONTAINERS_EACH)])
        for peer in (floor, ours):  # unmeasured
            _timed(peer, call)
        times: dict[Peer, list[list[int]]] = {floor: [], ours: []}
        for number in range(rounds):
            for peer in (floor, ours) if number % 2 else (ours, floor):
                times[peer].append([_timed(peer, call)])
    name = f"Synchronize of {PODS * CONTAINERS_EACH} containers"
    answered = paired_row(name, times[floor], times[ours], unit="ms", scale=MS_PER_NS, limit=LIMIT_MS)
    return [answered, p99_row(f"{name}, p99", times[floor], times[ours], unit="ms", scale=MS_PER_NS)]


def _timed(peer: Peer, call: Call) -> int:
    """Nanoseconds until the answer; what the workers have to do after the one before is done."""
    await_rest(peer.pid, SETTLED_S)
    begin = time.perf_counter_ns()
    answer = peer.call(call)
    taken = time.perf_counter_ns() - begin
    refuse_error(answer)
    return taken
