"""Runs targets for a while; says what it ran, and how to run what failed again."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from tests.fuzz.targets import TARGETS, Target

_BATCH = 100


class FoundError(AssertionError):
    """A target failed; the text says on what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How often each target ran."""

    seed: int
    executions: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        each = ", ".join(f"{name} {count}" for name, count in self.executions.items())
        return f"{sum(self.executions.values())} executions with seed {self.seed}: {each}"


def run(names: Iterable[str], *, seed: int, seconds: float, first: int = 0) -> Report:
    """Run the targets in turn for that long, each from its execution number `first` on. Raises FoundError."""
    end = time.monotonic() + seconds
    report = Report(seed=seed, executions=dict.fromkeys(names, 0))
    while True:
        for name in report.executions:
            for _ in range(_BATCH):
                execute(name, TARGETS[name], seed, first + report.executions[name])
                report.executions[name] += 1
            if time.monotonic() >= end:
                return report


def execute(name: str, target: Target, seed: int, number: int) -> None:
    """One execution; its random numbers are its own."""
    try:
        target.once(Random(seed << 40 | number))
    except Exception as error:
        again = f"python -m tests.fuzz --only {name} --seed {seed} --execution {number}"
        raise FoundError(
            f"{name} broke on execution {number}, {type(error).__name__}: {error}; again: {again}"
        ) from error
