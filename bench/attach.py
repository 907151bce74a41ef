"""What an attach takes beside the bare requests it is made of, and how much of that a pod's start waits for.

Three hosts with sixteen netdevs each: one for the floor, one for a daemon with `attach = blocking`, whose answer to
RunPodSandbox comes when all is done, and one for a daemon as it is by default. Only one of them works at a time; a
round does everything once, and begins with another one each time.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.figures import Row, paired_row
from bench.hosts import Host
from bench.moves import Moves, compile_moves
from bench.pods import MTU, NODE, Start, Subject
from bench.processes import await_rest, cpu_ns
from tests.rig.node import load

NICS = (1, 2, 4, 8, 16)
REPEATS = {0: 3, 1: 5, 2: 3, 4: 3, 8: 2}
"""In each round; once with more. A move waits for the kernel's grace periods, 15 to 40 ms each time: of few moves it
takes several to see what is usual."""
PAIRS = {1: 40, 2: 30, 4: 16, 8: 6, 16: 1}
"""In each round, of a blocking and an overlapped start one after the other: to tell 5 % of one move, which takes 15 to
40 ms as the kernel likes, it takes two hundred."""
GAPS_S = (0.0, 0.05, 0.2)
"""Between the answer to RunPodSandbox and CreateContainer: the pause image, the CNI of the next pod, a pull."""
WORK_TARGET = 1.25
GAIN_LIMIT_MS, LONG_GAP_S = 3.0, 0.2
FEW = 8
"""Up to so many devices the targets of the critical path hold; beyond they are told."""
BLOCKING, DEFAULT = "blocking", "overlapped"
LONG_S = 60.0
"""A blocking attach of many devices may need more than a runtime's default."""
MS_PER_NS, MS_PER_S = 1e-6, 1e3

Rounds = list[list[float]]


class Measured:
    """Rounds of everything, by number of NICs, in nanoseconds or seconds."""

    def __init__(self) -> None:
        self.floor: dict[int, Rounds] = defaultdict(list)
        self.floor_cpu: dict[int, Rounds] = defaultdict(list)
        self.work: dict[int, Rounds] = defaultdict(list)
        self.work_cpu: dict[int, Rounds] = defaultdict(list)
        self.paths: dict[tuple[str, float, int], list[list[Start]]] = defaultdict(list)
        """By subject, gap, and NICs; 0 of them is the pod that asks for nothing. Without a gap they are pairs."""


def rows(folder: Path, rounds: int) -> list[Row]:
    """All of them. Raises RuntimeError."""
    measured = Measured()
    with ExitStack() as stack:
        program = compile_moves(folder)
        bare = stack.enter_context(Host(folder / "bare", load(NODE)))
        moves = Moves(program, bare, MTU)
        blocking = stack.enter_context(
            Subject.started(folder, BLOCKING, settings={"NRI_RDMA_ATTACH": "blocking"}, timeout_s=LONG_S)
        )
        default = stack.enter_context(Subject.started(folder, DEFAULT))
        for subject in (blocking, default):  # unmeasured: byte code, grammar, caches
            subject.one_start(1, 0.0)
        for number in range(rounds):
            for is_floor in (True, False) if number % 2 else (False, True):
                if is_floor:
                    _bare(measured, moves)
                else:
                    _blocking(measured, blocking)
            _pairs(measured, blocking, default)
            for gap in filter(None, GAPS_S):
                for nics in (0, *NICS):
                    measured.paths[DEFAULT, gap, nics].append(_paths(default, nics, gap))
    return [*_work_rows(measured), *_path_rows(measured)]


def _bare(measured: Measured, moves: Moves) -> None:
    mtu = load(NODE).netdevs[0].mtu
    for nics in NICS:
        taken = [moves.attach_and_return(nics, mtu) for _ in _repeats(nics)]
        measured.floor[nics].append([wall for wall, _ in taken])
        measured.floor_cpu[nics].append([cpu for _, cpu in taken])


def _blocking(measured: Measured, subject: Subject) -> None:
    for nics in NICS:
        taken = [_with_cpu(subject, nics) for _ in _repeats(nics)]
        measured.work[nics].append([start.run_s / MS_PER_NS * MS_PER_S for start, _ in taken])
        measured.work_cpu[nics].append([cpu for _, cpu in taken])


def _pairs(measured: Measured, blocking: Subject, default: Subject) -> None:
    """Starts without a gap, of both by turns."""
    subjects = {BLOCKING: blocking, DEFAULT: default}
    for nics in (0, *NICS):
        block: dict[str, list[Start]] = {name: [] for name in subjects}
        for number in range(PAIRS.get(nics, REPEATS[0])):
            for name in (BLOCKING, DEFAULT) if number % 2 else (DEFAULT, BLOCKING):
                block[name].append(subjects[name].one_start(nics, 0.0))
        for name, starts in block.items():
            measured.paths[name, 0.0, nics].append(starts)


def _with_cpu(subject: Subject, nics: int) -> tuple[Start, float]:
    """A blocking start, with the processor time that it took in ns."""
    with subject.pod(nics) as pod:
        before = cpu_ns(subject.pid)
        start = subject.start(pod, 0.0)
        await_rest(subject.pid)
        start.refuse_unless(nics)
        return start, cpu_ns(subject.pid) - before


def _paths(subject: Subject, nics: int, gap_s: float) -> list[Start]:
    return [subject.one_start(nics, gap_s) for _ in _repeats(nics)]


def _repeats(nics: int) -> range:
    return range(REPEATS.get(nics, 1))


def _work_rows(measured: Measured) -> list[Row]:
    rows = []
    for nics in NICS:
        name = f"attach, {_devices(nics)}"
        rows.append(
            paired_row(name, measured.floor[nics], measured.work[nics], unit="ms", scale=MS_PER_NS, target=WORK_TARGET)
        )
        cpu = (measured.floor_cpu[nics], measured.work_cpu[nics])
        rows.append(paired_row(f"{name}, CPU", *cpu, unit="ms", scale=MS_PER_NS))
    return rows


def _path_rows(measured: Measured) -> list[Row]:
    """The value is what the path gains over that of a pod that asks for nothing; the floor is what it gains with a
    blocking attach and no gap."""
    rows = []
    for gap in GAPS_S:
        for nics in NICS:
            blocking = _gains_ms(measured, BLOCKING, 0.0, nics)
            ours = _gains_ms(measured, DEFAULT, gap, nics)
            ratio = median(ours) / median(blocking)
            if gap == 0:
                ratio = median(mine / its for mine, its in zip(ours, blocking, strict=True))
            starts = [start for block in measured.paths[DEFAULT, gap, nics] for start in block]
            refusals = sum(start.refusals for start in starts)
            told = f", {refusals} of {len(starts)} refused first" if refusals else ""
            rows.append(
                Row(
                    figure=f"path gains, {_devices(nics)}, {gap * MS_PER_S:.0f} ms later{told}",
                    value=median(ours),
                    unit="ms",
                    floor=median(blocking),
                    ratio=ratio,
                    target=NOT_SLOWER if gap == 0 and nics <= FEW else None,
                    limit=GAIN_LIMIT_MS if gap == LONG_GAP_S and nics <= FEW else None,
                )
            )
    return rows


NOT_SLOWER = 1.05
"""The same work in the same order, measured twice: equal but for what the machine does meanwhile."""


def _gains_ms(measured: Measured, subject: str, gap: float, nics: int) -> list[float]:
    """Of each start, more than those of pods that ask for nothing in the same round."""
    rounds = zip(measured.paths[subject, gap, nics], measured.paths[subject, gap, 0], strict=True)
    return [
        (start.path_s - median(it.path_s for it in plain)) * MS_PER_S for asking, plain in rounds for start in asking
    ]


def _devices(nics: int) -> str:
    return f"{nics} NIC{'s' if nics > 1 else ''}"
