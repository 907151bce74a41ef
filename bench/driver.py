"""The measuring side: one process that is the runtime of all subjects at once.

`python -m bench.driver FOLDER ROUNDS EVENTS SUBJECT...` listens on FOLDER/SUBJECT.sock for each, takes every plugin
through the handshake, and sends them the same bytes in alternating rounds: a block of events to the floor, a block to
ours, and in the next round the other way about. An event is timed from before its write to after its read. The times
are left in FOLDER/driver.json.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any  # Any: generated messages, and the document that main leaves

from bench.messages import ANNOTATION, ONE_SHARED, Call, create_container, pod, run_pod, start_container
from bench.peer import HEADERS, Listener, Peer
from nri_rdma.pb import nri_pb2 as nri
from nri_rdma.ttrpc.pb import ttrpc_pb2 as ttrpc

FLOOR, DEFAULT, UNTRACED, EXPORTING = "floor", "default", "untraced", "exporting"
RESULT = "driver.json"
WARM_UP_EVENTS = 300
_CPU_CLOCK = 2  # CPUCLOCK_SCHED of include/linux/posix-timers_types.h: what the scheduler counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A call that is sent to the floor and to one daemon."""

    name: str
    call: Call
    ours: str
    devices: int
    """At least so many device nodes must be in our answer, and none when it is 0."""
    rest_s: float = 0.0
    """After each block of ours: at thousands of pods a second an exporter would do nothing but lag behind."""


def cases() -> tuple[Case, ...]:
    """What is measured."""
    plain, asking = pod(1), asking_pod()
    device = create_container(asking)
    traced_device = create_container(asking, traced=True)
    nothing = create_container(plain)
    return (
        Case(name="sandbox event", call=run_pod(plain), ours=DEFAULT, devices=0),
        Case(name="create, tracing off", call=device, ours=UNTRACED, devices=1),
        Case(name="create, tracing on", call=traced_device, ours=DEFAULT, devices=1),
        Case(name="create, exporting", call=traced_device, ours=EXPORTING, devices=1, rest_s=0.02),
        Case(name="create, nothing asked", call=nothing, ours=DEFAULT, devices=0),
        Case(name="start, nothing asked", call=start_container(plain), ours=DEFAULT, devices=0),
    )


def asking_pod() -> Any:
    """The pod that has a device before the measurement starts."""
    return pod(2, {ANNOTATION: ONE_SHARED})


def main() -> None:
    """Serve, measure, tell."""
    folder, rounds, events, *subjects = sys.argv[1:]
    with ExitStack() as stack:
        listeners = {name: stack.enter_context(Listener(Path(folder) / f"{name}.sock")) for name in subjects}
        peers = {name: listener.accept() for name, listener in listeners.items()}
        for name, peer in peers.items():
            stack.callback(peer.close)
            peer.wait_for_registration()
            peer.activate()
            if name != FLOOR:
                _refuse_error(peer.call(run_pod(asking_pod())))
        gc.disable()  # a collection here would be in somebody's figure
        measured = measure(peers, cases(), int(rounds), int(events))
        Path(folder, RESULT).write_text(json.dumps(measured))


def measure(peers: dict[str, Peer], measured: Sequence[Case], rounds: int, events: int) -> list[dict[str, Any]]:
    """Per case: the times in ns per round, of the floor and of ours, and the CPU time in ns that an event took each."""
    for case in measured:
        _check(case, peers[case.ours])
        for name in (FLOOR, case.ours):
            _block(peers[name], case.call, WARM_UP_EVENTS)
    result: list[dict[str, Any]] = []
    times: dict[tuple[str, str], list[list[int]]] = {}
    cpu: dict[tuple[str, str], int] = {}
    for number in range(rounds):
        for case in measured:
            pair = (("floor", peers[FLOOR]), ("ours", peers[case.ours]))
            for side, peer in pair if number % 2 else pair[::-1]:
                before = _cpu_ns(peer.pid)
                times.setdefault((case.name, side), []).append(_block(peer, case.call, events))
                if side == "ours":
                    time.sleep(case.rest_s)
                cpu[case.name, side] = cpu.get((case.name, side), 0) + _cpu_ns(peer.pid) - before
    for case in measured:
        row: dict[str, Any] = {"case": case.name}
        for side in ("floor", "ours"):
            row[side] = times[case.name, side]
            row[f"{side}_cpu_ns"] = cpu[case.name, side] / (rounds * events)
        result.append(row)
    return result


def _block(peer: Peer, call: Call, events: int) -> list[int]:
    expected = peer.call(call)[HEADERS:]
    _refuse_error(bytes(HEADERS) + expected)
    taken: list[int] = []
    for _ in range(events):
        start = perf_counter_ns()
        answer = peer.call(call)
        taken.append(perf_counter_ns() - start)
        if answer[HEADERS:] != expected:
            raise ValueError("two answers to the same call differ")
    return taken


def _check(case: Case, peer: Peer) -> None:
    """A figure of a wrong answer is worth nothing."""
    payload = _refuse_error(peer.call(case.call))
    devices = len(nri.CreateContainerResponse.FromString(payload).adjust.linux.devices)
    if devices < case.devices or (devices and not case.devices):
        raise ValueError(f"{case.name}: the answer has {devices} devices, expected {case.devices}")


def _refuse_error(answer: bytes) -> bytes:
    response = ttrpc.Response.FromString(answer[HEADERS:])
    if response.status.code:
        raise ValueError(f"the plugin answered with an error: {response.status.message}")
    payload: bytes = response.payload
    return payload


def _cpu_ns(pid: int) -> int:
    """The CPU time of the process, with the threads that have ended: its clock (clock_getcpuclockid(3))."""
    return time.clock_gettime_ns((~pid << 3) | _CPU_CLOCK)


if __name__ == "__main__":
    main()
