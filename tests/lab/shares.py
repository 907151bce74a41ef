"""Which machine runs which of the guest's test files, and when: longest first, and the longest machine in shares.

A share is the same machine once more, with a part of its test files, so that it is in several slots at a time. All
shares but the last name their files, and the last runs what the others do not name: no test is in none of them, and
none in two. How long files take is known from an earlier run (durations.toml); what is wrong or missing in there costs
time only.

`python -m tests.lab.shares` writes that file out of the results of the last run of everything.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from tests.lab.machine import Model
from tests.lab.recipe import CHECKOUT
from tests.lab.reports import RESULTS, Case, part_name, read_cases

GUEST = "tests/lab/guest"
CORE = (
    "test_main_job.py",
    "test_claims.py",
    "test_exclusive.py",
    "test_limits.py",
    "test_rdma_moves.py",
    "test_traffic.py",
)
"""The files that every run of CI has, and of other kernels the only ones: what depends most on the kernel's RDMA."""
DURATIONS = Path(__file__).resolve().parent / "durations.toml"
START_S = 30.0
"""From QEMU's start to containerd and the daemon, and off again: what a share more costs."""
_HEADING = """# Seconds that test files take on each machine. shares.py deals them out so that all slots end together.
# `python -m tests.lab.shares` writes them, as the last run of everything took.
"""

Seconds = Mapping[str, Mapping[str, float]]
"""By machine and test file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A machine with the tests that it runs: all of its own, or a share of them."""

    model: Model
    name: str  # the machine's, with the number of the share where there are several
    selection: tuple[str, ...]  # for pytest; empty: somebody else says what runs
    seconds: float  # that it is expected to take


def load(table: Path = DURATIONS) -> Seconds:
    """The durations as they are written down."""
    return tomllib.loads(table.read_text())


def guest_files(folder: Path = CHECKOUT / GUEST) -> tuple[str, ...]:
    """The names of the guest's test files."""
    return tuple(sorted(path.name for path in folder.glob("test_*.py")))


def plan(models: Sequence[Model], slots: int, files: Iterable[str], seconds: Seconds) -> tuple[Part, ...]:
    """Everything that these machines have to run, in the order in which it is begun; with shares where that ends
    sooner."""
    there = set(files)
    times = {
        model.name: {file: took for file, took in seconds.get(model.name, {}).items() if file in there}
        for model in models
    }
    whole = tuple(
        Part(model=model, name=model.name, selection=(GUEST,), seconds=START_S + sum(times[model.name].values()))
        for model in models
    )
    longest = max(whole, key=attrgetter("seconds"))
    others = tuple(part for part in whole if part is not longest)
    shared = (*others, *_shares(longest, times[longest.model.name], _loads(others, slots)))
    return _longest_first(min(whole, shared, key=lambda parts: max(_loads(parts, slots))))


def durations(cases: Iterable[Case]) -> str:
    """The text of durations.toml, as these tests took."""
    found: dict[str, dict[str, float]] = {}
    for case in cases:
        files = found.setdefault(case.machine, {})
        files[case.file] = files.get(case.file, 0.0) + case.seconds
    tables = (
        f"\n[{machine}]\n" + "".join(f'"{name}" = {seconds:.0f}\n' for name, seconds in sorted(files.items()))
        for machine, files in sorted(found.items())
    )
    return _HEADING + "".join(tables)


def _loads(parts: Iterable[Part], slots: int) -> list[float]:
    """Until when each slot is taken, when parts are begun longest first, each in the slot that is free first."""
    loads = [0.0] * slots
    for part in _longest_first(parts):
        loads[loads.index(min(loads))] += part.seconds
    return loads


def _longest_first(parts: Iterable[Part]) -> tuple[Part, ...]:
    return tuple(sorted(parts, key=attrgetter("seconds"), reverse=True))


def _shares(whole: Part, times: Mapping[str, float], loads: Sequence[float]) -> tuple[Part, ...]:
    """A share for each slot, so that all are taken for the same time; none for a slot that the others fill."""
    until = [load + START_S for load in loads]
    dealt: list[dict[str, float]] = [{} for _ in loads]
    for name, seconds in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        slot = until.index(min(until))
        until[slot] += seconds
        dealt[slot][name] = seconds
    shares = [share for share in dealt if share]
    if len(shares) < 2:
        return (whole,)
    *named, last = (part_name(whole.model.name, number) for number, _ in enumerate(shares, 1))
    taken = [f"{GUEST}/{name}" for share in shares[:-1] for name in sorted(share)]
    parts = [
        Part(
            model=whole.model,
            name=name,
            selection=tuple(f"{GUEST}/{file}" for file in sorted(share)),
            seconds=START_S + sum(share.values()),
        )
        for name, share in zip(named, shares[:-1], strict=True)
    ]
    rest = (GUEST, *(f"--ignore={path}" for path in taken))
    return *parts, Part(model=whole.model, name=last, selection=rest, seconds=START_S + sum(shares[-1].values()))


if __name__ == "__main__":
    DURATIONS.write_text(durations(read_cases(RESULTS)))
