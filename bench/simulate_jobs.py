"""Who comes to the node of a simulation and when, and which GPUs they get: the same for every policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from random import Random

NEVER = 1 << 30
_LONGEST_STAY = 12
"""Steps."""
_SIZES = (1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 8)
"""GPUs of a job; the small ones are more frequent."""


class Picker(StrEnum):
    """Which free GPUs the stand-in of the kubelet's device plugin gives."""

    LOWEST = "lowest free"
    RANDOM = "random free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A pod: it is there from the step `comes` until before the step `leaves`, has `gpus` and asks for `nics`."""

    number: int
    comes: int
    leaves: int
    gpus: tuple[str, ...]
    nics: int
    strict: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Jobs in the order in which they come."""

    name: str
    picker: Picker
    jobs: tuple[Job, ...]
    has_strangers: bool = False
    """Pods without GPUs are among them."""


def fixed(name: str, sizes: Sequence[int], gpus: Sequence[str], picker: Picker, seed: int) -> Scenario:
    """Jobs that stay, of so many GPUs, each with as many NICs."""
    random, free, jobs = Random(f"{name} {seed}"), list(gpus), list[Job]()
    for number, size in enumerate(sizes):
        own = _pick(random, free, size, picker)
        jobs.append(Job(number=number, comes=number, leaves=NEVER, gpus=own, nics=size))
    return Scenario(name=name, picker=picker, jobs=tuple(jobs))


def mixed(
    name: str,
    arrivals: int,
    gpus: Sequence[str],
    picker: Picker,
    seed: int,
    *,
    strangers: float = 0,
    strict: bool = False,
) -> Scenario:
    """So many pods, at most one at each step; a job for which too few GPUs are free waits, and those after it, too. All
    stay for a random time.

    `strangers` is the share of pods without GPU, which never wait; they ask for one NIC. A pod that is refused keeps
    its GPUs: the kubelet does not give them back while it tries again."""
    random, jobs, there = Random(f"{name} {seed}"), list[Job](), list[Job]()
    size = random.choice(_SIZES)
    for step in count():
        if len(jobs) == arrivals:
            break
        there = [job for job in there if job.leaves > step]
        busy = {gpu for job in there for gpu in job.gpus}
        free = [gpu for gpu in gpus if gpu not in busy]
        leaves = step + random.randint(1, _LONGEST_STAY)
        if random.random() < strangers:
            job = Job(number=len(jobs), comes=step, leaves=leaves, gpus=(), nics=1)
        elif size <= len(free):
            own, hard = _pick(random, free, size, picker), strict and random.random() < 0.5
            nics = _nics(random, size)
            job = Job(number=len(jobs), comes=step, leaves=leaves, gpus=own, nics=nics, strict=hard)
            size = random.choice(_SIZES)
        else:
            continue
        jobs.append(job)
        there.append(job)
    return Scenario(name=name, picker=picker, jobs=tuple(jobs), has_strangers=bool(strangers))


def _nics(random: Random, size: int) -> int:
    """As many as GPUs, none, or fewer."""
    kind = random.random()
    return size if kind < 0.6 else 0 if kind < 0.7 else random.randint(1, size)


def _pick(random: Random, free: list[str], size: int, picker: Picker) -> tuple[str, ...]:
    """Take some of the free GPUs away."""
    chosen = free[:size] if picker is Picker.LOWEST else random.sample(free, size)
    for gpu in chosen:
        free.remove(gpu)
    return tuple(chosen)


def moments(jobs: Sequence[Job]) -> Iterator[tuple[list[Job], Job]]:
    """Each job, with those that end before it comes and after the one before it came."""
    there: list[Job] = []
    for job in jobs:
        gone = [other for other in there if other.leaves <= job.comes]
        there = [other for other in there if other.leaves > job.comes] + [job]
        yield gone, job
