"""How long an event that concerns nobody takes while an attach of sixteen devices and an export of spans run."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.driver import EXPORTING, FLOOR
from bench.figures import Row, p99_row
from bench.hosts import in_namespace
from bench.messages import ANNOTATION, Call, create_container, pod, run_pod
from bench.peer import Listener, Peer
from bench.pods import NODE, Subject, accepted, refuse_error
from bench.processes import started
from tests.rig.node import CharDevice, Node, load

NICS = 16
SPARE, SPARE_GUID = "mlx5_16", "b83f:d203:0000:1110"
SHARED = f"- {{mode: shared, match: {{device: {SPARE}}}}}\n"
GONE_S = 60.0
EVENTS_PER_SPAN = 10
SPANS = 600
"""Traced events before each attach: more than a batch, so that the exporter begins at once and is busy meanwhile."""
TARGET = 3.0
WARM_UP = 300
US_PER_NS = 1e-3
SETTINGS = {"OTEL_TRACES_EXPORTER": "console"}


def rows(folder: Path, rounds: int) -> list[Row]:
    """Beside a bare responder's: while the same goes on in the daemon beside it, and while nothing does."""
    with ExitStack() as stack:
        ours = stack.enter_context(Subject.started(folder, EXPORTING, settings=SETTINGS, node=_node()))
        listener = stack.enter_context(Listener(ours.place.socket(FLOOR)))
        process = stack.enter_context(started(ours.place.floor_command(FLOOR), folder / f"{FLOOR}.log"))
        floor = accepted(listener, process)
        stack.callback(floor.close)
        floor.wait_for_registration()
        floor.activate()
        nothing, shared = run_pod(pod(9001)), pod(9002, {ANNOTATION: SHARED})
        refuse_error(ours.peer.call(run_pod(shared)))
        traced = create_container(shared, traced=True)
        for peer in (floor, ours.peer):
            for _ in range(WARM_UP):
                _timed(peer, nothing)
        busy: list[list[int]] = []
        beside: list[list[int]] = []
        idle: list[list[int]] = []
        for _ in range(rounds):
            busy.append(_during(ours, traced, ours.peer, nothing))
            beside.append(_during(ours, traced, floor, nothing))
            idle.append([_timed(floor, nothing) for _ in range(len(busy[-1]))])
    name = f"nothing asked, while {NICS} NICs are attached"
    return [
        p99_row(f"{name}, p99", beside, busy, scale=US_PER_NS, target=TARGET),
        p99_row(f"{name}, p99, floor at rest", idle, busy, scale=US_PER_NS),
    ]


def _node() -> Node:
    """With one more device, which another pod shares, and which makes spans meanwhile."""
    node = load(NODE)
    first = node.rdma[0]
    ports = tuple(replace(port, gids=()) for port in first.ports)
    uverbs = CharDevice(name=f"uverbs{NICS}", dev="231:208")
    return replace(
        node,
        rdma=(
            *node.rdma,
            replace(first, name=SPARE, function="", node_guid=SPARE_GUID, ports=ports, uverbs=uverbs, umad=()),
        ),
    )


def _during(subject: Subject, traced: Call, peer: Peer, nothing: Call) -> list[int]:
    """Events from the answer to RunPodSandbox until the last netdev has left the host."""
    times: list[int] = []

    def send_until_gone() -> None:
        deadline = time.monotonic() + GONE_S
        while any(_is_there(name) for name in subject.host.ifindexes):
            if time.monotonic() > deadline:
                raise RuntimeError("the netdevs did not leave the host")
            refuse_error(subject.peer.call(traced))
            times.extend(_timed(peer, nothing) for _ in range(EVENTS_PER_SPAN))

    with subject.pod(NICS) as message:
        for _ in range(SPANS):
            refuse_error(subject.peer.call(traced))
        subject.run(message)
        in_namespace(subject.host.path, send_until_gone)
    if not times:
        raise RuntimeError("the attach was over when RunPodSandbox was answered: nothing ran beside the events")
    return times


def _is_there(name: str) -> bool:
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def _timed(peer: Peer, call: Call) -> int:
    begin = time.perf_counter_ns()
    answer = peer.call(call)
    taken = time.perf_counter_ns() - begin
    refuse_error(answer)
    return taken
