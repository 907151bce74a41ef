"""Two daemons in turn, and what they are compared with."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from bench.messages import Call, synchronize
from bench.peer import TIMEOUT_S, Listener, Peer
from bench.pods import accepted, refuse_error
from bench.processes import Place, await_rest, started


def alternating(
    one: Peer, other: Peer, call: Call, rounds: int, events: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The times of each, in blocks that follow each other."""
    found: dict[Peer, list[list[int]]] = {one: [], other: []}
    for number in range(rounds):
        for peer in (one, other) if number % 2 else (other, one):
            found[peer].append([timed(lambda: peer.call(call)) for _ in range(events)])  # noqa: B023
    return found[one], found[other]


def timed(call: Callable[[], object]) -> int:
    """How long a call takes, in nanoseconds."""
    begin = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - begin


def await_true(is_so: Callable[[], bool], otherwise: str) -> None:
    """Wait until it is so. Raises RuntimeError with what it is otherwise."""
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(0.05)


def synchronized(stack: ExitStack, place: Place, name: str, command: list[str]) -> Peer:
    """A daemon as its runtime has it, which has told it of no pods; at rest."""
    peer = connected(stack, place, name, command)
    refuse_error(peer.call(synchronize()))
    await_rest(peer.pid)
    return peer


def connected(stack: ExitStack, place: Place, name: str, command: list[str]) -> Peer:
    """A plugin that its runtime has connected to."""
    listener = stack.enter_context(Listener(place.socket(name, again=True)))
    process = stack.enter_context(started(command, place.folder / f"{name}.log"))
    peer = accepted(listener, process)
    stack.callback(peer.close)
    peer.wait_for_registration()
    peer.activate()
    return peer
