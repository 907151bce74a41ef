"""What it costs that netdevs take along what they have on the host, and that netdevs could which have nothing.

Each of sixteen netdevs of a host has an address, eight routes, four rules and four permanent neighbours. Pods ask for
eight of them and say nothing of their network.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench import configured
from bench.attach import GAIN_LIMIT_MS, LONG_GAP_S, LONG_S, MS_PER_NS, MS_PER_S, WORK_TARGET
from bench.figures import Row, paired_row
from bench.hosts import Host
from bench.moves import Moves, compile_moves
from bench.pods import MTU, NODE, Subject
from bench.processes import await_rest
from tests.rig.node import load

NICS = 8
PAIRS = 3
"""In each round, of everything but the next."""
SINGLE_PAIRS = 10
"""In each round, of single netdevs without anything: to tell 5 % of a move it takes many."""
NOT_DEARER = 1.05
RICH, RICH_BLOCKING, POOR = "rich", "rich-blocking", "poor-blocking"
TAKES_ALONG = f"- {{name: fabric, count: {NICS}, interface: {{mtu: {MTU}}}}}\n"
ONE = f"- {{name: fabric, interface: {{mtu: {MTU}}}}}\n"
ONE_WITHOUT = f"- {{name: fabric, interface: {{mtu: {MTU}, inherit: false}}}}\n"


class Measured:
    """Pairs in nanoseconds, and what the critical path gains in milliseconds."""

    def __init__(self) -> None:
        self.floor: list[list[float]] = []
        self.ours: list[list[float]] = []
        self.poor_capture: list[list[float]] = []
        self.capture: list[list[float]] = []
        self.without: list[list[float]] = []
        self.nothing: list[list[float]] = []
        self.gains_ms: list[float] = []


def rows(folder: Path, rounds: int) -> list[Row]:
    """All of them. Raises RuntimeError."""
    measured = Measured()
    settings = {"NRI_RDMA_ATTACH": "blocking"}
    with ExitStack() as stack:
        program = compile_moves(folder)
        bare = stack.enter_context(Host(folder / "bare-inherited", load(NODE)))
        moves = Moves(program, bare, MTU)
        blocking = {
            name: stack.enter_context(Subject.started(folder, name, settings=settings, timeout_s=LONG_S))
            for name in (RICH_BLOCKING, POOR)
        }
        default = stack.enter_context(Subject.started(folder, RICH))
        for subject in (blocking[RICH_BLOCKING], default):
            subject.host.ip("\n".join(map(configured.host_batch, range(16), subject.host.ifindexes)) + "\n")
            await_rest(subject.pid)
        for subject in (*blocking.values(), default):  # unmeasured, as in the part attach
            subject.one_start(1, 0.0, ONE)
        mtu = load(NODE).netdevs[0].mtu
        for number in range(rounds):
            for pair in range(PAIRS):
                for is_floor in (True, False) if (number + pair) % 2 else (False, True):
                    if is_floor:
                        wall, _ = moves.attach_and_return(NICS, mtu, configured.inherited_settings)
                        measured.floor.append([wall])
                    else:
                        _blocking(measured, blocking)
                plain = default.one_start(0, LONG_GAP_S)
                asking = default.one_start(NICS, LONG_GAP_S, TAKES_ALONG)
                measured.gains_ms.append((asking.path_s - plain.path_s) * MS_PER_S)
            for pair in range(SINGLE_PAIRS):
                for text in (ONE, ONE_WITHOUT) if pair % 2 else (ONE_WITHOUT, ONE):
                    taken = blocking[POOR].one_start(1, 0.0, text).run_s * MS_PER_S / MS_PER_NS
                    (measured.nothing if text == ONE else measured.without).append([taken])
    return _rows_of(measured)


def _rows_of(measured: Measured) -> list[Row]:
    name = f"{NICS} NICs that take along"
    gains, blocking_ms = median(measured.gains_ms), median(taken for (taken,) in measured.ours) * MS_PER_NS
    return [
        paired_row(f"attach, {name}", measured.floor, measured.ours, unit="ms", scale=MS_PER_NS, target=WORK_TARGET),
        paired_row(f"capture, {name}", measured.poor_capture, measured.capture, unit="ms", scale=MS_PER_NS),
        Row(
            figure=f"path gains, {name}, {LONG_GAP_S * MS_PER_S:.0f} ms later",
            value=gains,
            unit="ms",
            floor=blocking_ms,
            ratio=gains / blocking_ms,
            limit=GAIN_LIMIT_MS,
        ),
        paired_row(
            "attach, 1 NIC that could take along and has nothing",
            measured.without,
            measured.nothing,
            unit="ms",
            scale=MS_PER_NS,
            target=NOT_DEARER,
        ),
    ]


def _blocking(measured: Measured, subjects: dict[str, Subject]) -> None:
    """A start of a pod whose netdevs take all along, and one of a pod whose netdevs have nothing."""
    for name, captures in ((RICH_BLOCKING, measured.capture), (POOR, measured.poor_capture)):
        subject = subjects[name]
        with subject.pod(NICS, TAKES_ALONG) as pod:
            start = subject.start(pod, 0.0)
            await_rest(subject.pid)
            start.refuse_unless(NICS)
            captures.append([subject.spent_ns(pod, "capture")])
        if name == RICH_BLOCKING:
            measured.ours.append([start.run_s * MS_PER_S / MS_PER_NS])
