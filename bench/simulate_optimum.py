"""What would have been possible, by code that knows nothing of the product: of one arrival, and of all of them.

A job is aligned when each of its NICs is below the root complex of a GPU of its own that no other of its NICs serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from bench.exact import cheapest, most_pairs
from bench.simulate_jobs import Job, moments
from bench.simulate_machine import Far, Machine

Value = tuple[int, int, int, int]
"""Of some pairs: how many are beyond the root complex, beyond the NUMA node, over the root complex, over several
switches; fewer is better, the first counts most."""
MAX_STATES = 200_000
_BASE = 64


class TooManyStatesError(Exception):
    """There is too much to try."""


def value(distances: Iterable[Far]) -> Value:
    """How good pairs of these distances are."""
    pairs = list(distances)
    return (
        sum(far > Far.PHB for far in pairs),
        pairs.count(Far.SYS),
        pairs.count(Far.PHB),
        pairs.count(Far.PXB),
    )


def best_pairs(machine: Machine, nics: Sequence[str], job: Job) -> list[tuple[str, str]]:
    """The best pairs of so many of these NICs as the job asks, and its GPUs, one each; there are enough of both."""
    spare = [0] * (len(job.gpus) - job.nics)
    given = _BASE**5  # a GPU that gets one: so that none gets none without need
    costs = [[given + _number(machine.far[nic, gpu]) for nic in nics] + spare for gpu in job.gpus]
    columns = cheapest(costs)
    if columns is None:
        raise ValueError(f"job {job.number} asks {job.nics} of {len(nics)} NICs for {len(job.gpus)} GPUs")
    pairs = zip(job.gpus, columns, strict=True)
    return [(nics[column], gpu) for gpu, column in pairs if column < len(nics)]


def _number(far: Far) -> int:
    number = 0
    for digit in value([far]):
        number = number * _BASE + digit
    return number


def most_aligned(machine: Machine, nics: Sequence[str], job: Job) -> int:
    """How many of its NICs can be aligned when it gets them of these."""
    pairs = most_pairs([[machine.is_aligned(nic, gpu) for nic in nics] for gpu in job.gpus])
    return min(pairs, job.nics)


def if_moved(machine: Machine, jobs: Sequence[Job]) -> int:
    """The most jobs with GPUs that could be aligned if all others could be moved whenever one comes.

    At each arrival a matching of all NICs to all GPUs that are there: where not every NIC that is asked can be aligned
    at once, at least so many jobs are not. That is an upper bound for everybody."""
    there: list[Job] = []
    missing = 0
    for gone, job in moments(jobs):
        there = [other for other in there if other not in gone] + [job]
        rows = [line for it in there for line in [_aligned_to_any(machine, it)] * it.nics if it.gpus]
        missing = max(missing, len(rows) - most_pairs(rows))
    most = max((job.nics for job in jobs), default=1) or 1
    return sum(is_counted(job) for job in jobs) - -(-missing // most)


def _aligned_to_any(machine: Machine, job: Job) -> list[bool]:
    return [any(machine.is_aligned(nic, gpu) for gpu in job.gpus) for nic in machine.nics]


def is_counted(job: Job) -> bool:
    """Whether it is one that can be aligned at all: it has GPUs and asks for NICs."""
    return bool(job.gpus) and job.nics > 0


State = tuple[int, ...]
"""For each NIC when it gets free."""


def clairvoyant(machine: Machine, jobs: Sequence[Job]) -> int:
    """The most jobs with GPUs that could have been aligned by somebody who knows all that comes, but moves nobody, and
    who also gives each job as many aligned NICs as are free when it comes.

    All that could be done is tried, at each arrival from every state that could have been reached. The jobs are those
    that were served. Raises TooManyStatesError."""
    best: dict[State, int] = {(0,) * len(machine.nics): 0}
    for job in jobs:
        if job.nics:
            best = _after(machine, best, job)
            if len(best) > MAX_STATES:
                raise TooManyStatesError(f"{len(best)} states at job {job.number}")
    return max(best.values())


def _after(machine: Machine, best: dict[State, int], job: Job) -> dict[State, int]:
    after: dict[State, int] = {}
    choices: dict[tuple[int, ...], list[tuple[frozenset[int], bool]]] = {}
    for state, number in best.items():
        now = tuple(0 if leaves <= job.comes else leaves for leaves in state)
        free = tuple(place for place, leaves in enumerate(now) if not leaves)
        if free not in choices:
            choices[free] = list(_choices(machine, free, job))
        for chosen, aligned in choices[free]:
            then = tuple(job.leaves if place in chosen else leaves for place, leaves in enumerate(now))
            after[then] = max(after.get(then, 0), number + aligned)
    return after


def _choices(machine: Machine, free: tuple[int, ...], job: Job) -> Iterator[tuple[frozenset[int], bool]]:
    """Sets of free NICs for the job, and whether it is aligned with them."""
    most = most_aligned(machine, [machine.nics[place] for place in free], job)
    for chosen in combinations(free, job.nics):
        if not job.gpus:
            yield frozenset(chosen), False
        elif most_aligned(machine, [machine.nics[place] for place in chosen], job) == most:
            yield frozenset(chosen), most == job.nics
