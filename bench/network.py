"""What the network of netdevs costs an attach: routes, rules, neighbours, sysctls and features (bench/configured.py).

As in the part `attach`: three hosts with sixteen netdevs each, of which one works at a time. The request comes as a
pod's annotation. What is compared is taken in pairs, one right after the other.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import configured
from bench.attach import BLOCKING, DEFAULT, FEW, GAIN_LIMIT_MS, LONG_GAP_S, LONG_S, MS_PER_NS, MS_PER_S, NICS
from bench.attach import WORK_TARGET as TARGET
from bench.figures import Row, paired_row
from bench.hosts import Host
from bench.moves import Moves, compile_moves
from bench.pods import MTU, NODE, Subject
from bench.processes import await_rest, cpu_ns
from tests.rig.daemon import ALL_RIGHTS
from tests.rig.node import load

PAIRS = {1: 8, 2: 4, 4: 3, 8: 2}
"""In each round; once with more."""
PATHS = {1: 3, 2: 2, 4: 2, 8: 2}
"""The same, of pairs with a gap."""


class Measured:
    """Pairs by number of NICs, in nanoseconds, and starts."""

    def __init__(self) -> None:
        self.floor: dict[int, list[list[float]]] = defaultdict(list)
        """C with the same calls."""
        self.changes: dict[int, list[list[float]]] = defaultdict(list)
        """C with those of them that change something, but the journal."""
        self.ours: dict[int, list[list[float]]] = defaultdict(list)
        self.answers: dict[int, list[list[float]]] = defaultdict(list)
        """The same attaches, from the runtime's request to its answer."""
        self.floor_cpu: dict[int, list[list[float]]] = defaultdict(list)
        self.ours_cpu: dict[int, list[list[float]]] = defaultdict(list)
        self.gains_ms: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.refusals: dict[tuple[str, int], int] = defaultdict(int)


ATTACH = ("plan", "attach")
"""The spans of what the floor does, too. Before them the daemon reads the request and chooses devices."""
NEW, KNOWN = "first pod", "next pods"
"""A pod whose annotation no pod had before it, and one of a job whose pods have the same."""


def rows(folder: Path, rounds: int) -> list[Row]:
    """All of them. Raises RuntimeError."""
    measured = Measured()
    with ExitStack() as stack:
        program = compile_moves(folder)
        bare = stack.enter_context(Host(folder / "bare", load(NODE)))
        moves = Moves(program, bare, MTU)
        settings = {"NRI_RDMA_ATTACH": "blocking"}
        blocking = stack.enter_context(
            Subject.started(folder, BLOCKING, settings=settings, timeout_s=LONG_S, flags=ALL_RIGHTS)
        )
        default = stack.enter_context(Subject.started(folder, DEFAULT, flags=ALL_RIGHTS))
        for subject in (blocking, default):  # unmeasured: byte code, grammar, caches
            subject.one_start(1, 0.0, configured.request(1, MTU))
        for number in range(rounds):
            for nics in NICS:
                for pair in range(PAIRS.get(nics, 1)):
                    for is_floor in (True, False) if (number + pair) % 2 else (False, True):
                        if is_floor:
                            _floors(measured, moves, nics)
                        else:
                            _blocking(measured, blocking, nics)
            _paths(measured, default, number)
    return [*_work_rows(measured), *_path_rows(measured)]


def _floors(measured: Measured, moves: Moves, nics: int) -> None:
    mtu = load(NODE).netdevs[0].mtu
    for looks in (True, False) if len(measured.floor[nics]) % 2 else (False, True):
        wall, cpu = moves.attach_and_return(nics, mtu, configured.settings, looks=looks)
        (measured.floor if looks else measured.changes)[nics].append([wall])
        if looks:
            measured.floor_cpu[nics].append([cpu])


def _blocking(measured: Measured, subject: Subject, nics: int) -> None:
    """A start with `attach = blocking`, whose annotation is known: what is compared is the attach."""
    with subject.pod(nics, configured.request(nics, MTU)) as pod:
        before = cpu_ns(subject.pid)
        start = subject.start(pod, 0.0)
        await_rest(subject.pid)
        start.refuse_unless(nics)
        measured.ours_cpu[nics].append([cpu_ns(subject.pid) - before])
        measured.ours[nics].append([subject.spent_ns(pod, *ATTACH)])
        measured.answers[nics].append([start.run_s * MS_PER_S / MS_PER_NS])


def _paths(measured: Measured, subject: Subject, number: int) -> None:
    """Starts with a long gap, beside that of a pod that asks for nothing."""
    for nics in NICS:
        known = configured.request(nics, MTU)
        if not number:
            subject.one_start(nics, LONG_GAP_S, known)  # so that it is known
        for pair in range(PATHS.get(nics, 1)):
            for name, text in ((NEW, configured.request(nics, MTU, f"round{number}-{pair}-")), (KNOWN, known)):
                plain = subject.one_start(0, LONG_GAP_S)
                asking = subject.one_start(nics, LONG_GAP_S, text)
                measured.gains_ms[name, nics].append((asking.path_s - plain.path_s) * MS_PER_S)
                measured.refusals[name, nics] += asking.refusals


def _work_rows(measured: Measured) -> list[Row]:
    rows = []
    for nics in NICS:
        name = f"configured attach, {_devices(nics)}"
        pairs = (measured.floor[nics], measured.ours[nics])
        rows.append(paired_row(name, *pairs, unit="ms", scale=MS_PER_NS, target=TARGET))
        changes = (measured.changes[nics], measured.ours[nics])
        rows.append(paired_row(f"{name}, beside its changes alone", *changes, unit="ms", scale=MS_PER_NS))
        answers = (measured.floor[nics], measured.answers[nics])
        rows.append(paired_row(f"{name}, with request and answer", *answers, unit="ms", scale=MS_PER_NS))
        cpu = (measured.floor_cpu[nics], measured.ours_cpu[nics])
        rows.append(paired_row(f"{name}, CPU", *cpu, unit="ms", scale=MS_PER_NS))
    return rows


def _path_rows(measured: Measured) -> list[Row]:
    rows = []
    for (name, nics), gains in measured.gains_ms.items():
        refusals = measured.refusals[name, nics]
        told = f", {refusals} of {len(gains)} refused first" if refusals else ""
        floor = median(value for pair in measured.answers[nics] for value in pair) * MS_PER_NS
        rows.append(
            Row(
                figure=f"configured path gains, {name}, {_devices(nics)}, {LONG_GAP_S * MS_PER_S:.0f} ms later{told}",
                value=median(gains),
                unit="ms",
                floor=floor,
                ratio=median(gains) / floor,
                limit=GAIN_LIMIT_MS if name == KNOWN and nics <= FEW else None,
            )
        )
    return rows


def _devices(nics: int) -> str:
    return f"{nics} NIC{'s' if nics > 1 else ''}"
