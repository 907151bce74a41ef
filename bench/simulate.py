"""`python -m bench.simulate`: jobs come to a node and go, under our placement and under others; a table, and
build/simulate.json. Ends with 1 when a placement could have been better where docs/placement.md promises the best.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.simulate_jobs import Picker, Scenario, fixed, mixed
from bench.simulate_machine import Machine
from bench.simulate_optimum import clairvoyant, if_moved
from bench.simulate_run import AnyFree, LowestIndex, Ours, Outcome, Policy, run
from tests.rig.node import load

REPORT = Path("build/simulate.json")
NODE = "eight"
"""One of tests/rig/nodes: docs/placement.md promises of this one. On others jobs may never fit, or never be aligned."""
STRANGERS = (0.1, 0.3)
"""Shares of pods without GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A scenario under all policies; `optimum` and `if_moved` are jobs that could have been aligned: with nobody moved
    (bench.simulate_optimum.clairvoyant), and if all could be moved."""

    scenario: Scenario
    ours: Outcome
    lowest_index: Outcome
    random: Outcome
    optimum: int
    if_moved: int

    @property
    def is_comparable(self) -> bool:
        """Whether all policies served the same jobs: those that ignore `strict` serve more."""
        return self.ours.served == self.lowest_index.served == self.random.served

    @property
    def is_promised(self) -> bool:
        """Whether ours has to be the optimum: where only jobs with GPUs come, each finds its NICs free."""
        return not self.scenario.has_strangers

    @property
    def is_met(self) -> bool:
        """Whether ours is what it has to be."""
        best = not self.is_promised or self.ours.aligned == self.if_moved == self.optimum
        return best and not self.ours.refused_while_admissible and not self.ours.worse_than_free

    def document(self) -> dict[str, object]:
        """The scenario in simulate.json; shares are of the jobs with GPUs that got NICs."""
        counted = self.ours.counted or 1
        return {
            "scenario": self.scenario.name,
            "gpus": self.scenario.picker.value,
            "pods": len(self.scenario.jobs),
            "jobs_with_gpus_and_nics": self.ours.counted,
            "refused": len(self.ours.refused),
            "refused_while_admissible": self.ours.refused_while_admissible,
            "worse_than_best_free": self.ours.worse_than_free,
            "aligned_share": _rounded(self.ours.share),
            "optimum_share": _rounded(self.optimum / counted),
            "optimum_share_if_moved": _rounded(self.if_moved / counted),
            "baseline_lowest_index": _rounded(self.lowest_index.share) if self.is_comparable else None,
            "baseline_random": _rounded(self.random.share) if self.is_comparable else None,
            "aligned_share_of_pairs": _rounded(self.ours.aligned_pairs / (self.ours.pairs or 1)),
            "met": self.is_met,
        }


def main() -> int:
    """Simulate and tell."""
    parser = argparse.ArgumentParser(prog="bench.simulate", description="Jobs come to a node and go.")
    parser.add_argument("--arrivals", type=int, default=1000, help="of the mixed scenarios")
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    machine = Machine.of(load(NODE))
    compared = [compare(machine, scenario, given.seed) for scenario in scenarios(machine, given.arrivals, given.seed)]
    document = {"node": NODE, "arrivals": given.arrivals, "seed": given.seed, **report(compared)}
    REPORT.parent.mkdir(exist_ok=True)
    REPORT.write_text(json.dumps(document, indent=1) + "\n")
    print(f"node {NODE}, {given.arrivals} arrivals, seed {given.seed}\n{table(compared)}")
    return 0 if all(it.is_met for it in compared) else 1


def scenarios(machine: Machine, arrivals: int, seed: int) -> list[Scenario]:
    """Each with GPUs given in their order, and in no order."""
    return [scenario for picker in Picker for scenario in _scenarios(machine.gpus, arrivals, picker, seed)]


def _scenarios(gpus: Sequence[str], arrivals: int, picker: Picker, seed: int) -> list[Scenario]:
    strangers = [mixed(f"{it:.0%} pods without GPU", arrivals, gpus, picker, seed, strangers=it) for it in STRANGERS]
    return [
        fixed("one-GPU jobs", [1] * len(gpus), gpus, picker, seed),
        fixed("two-GPU jobs", [2] * (len(gpus) // 2), gpus, picker, seed),
        mixed("mixed jobs", arrivals, gpus, picker, seed),
        *strangers,
        mixed("the same, half of the jobs strict", arrivals, gpus, picker, seed, strangers=STRANGERS[-1], strict=True),
    ]


def compare(machine: Machine, scenario: Scenario, seed: int, ours: Callable[[Machine], Policy] = Ours) -> Compared:
    """All policies, and what would have been possible for the jobs that ours served."""
    outcome = run(machine, scenario, ours(machine))
    return Compared(
        scenario=scenario,
        ours=outcome,
        lowest_index=run(machine, scenario, LowestIndex(machine=machine)),
        random=run(machine, scenario, AnyFree(machine=machine, random=Random(f"any free {seed}"))),
        optimum=clairvoyant(machine, outcome.served),
        if_moved=if_moved(machine, outcome.served),
    )


def report(compared: Sequence[Compared]) -> dict[str, object]:
    """The figures: shares over the scenarios in which all pods have GPUs, refusals over all scenarios."""
    promised = [it for it in compared if it.is_promised]
    counted = sum(it.ours.counted for it in promised)
    return {
        "aligned_share": _rounded(sum(it.ours.aligned for it in promised) / counted),
        "optimum_share": _rounded(sum(it.if_moved for it in promised) / counted),
        "baseline_lowest_index": _rounded(sum(it.lowest_index.aligned for it in promised) / counted),
        "baseline_random": _rounded(sum(it.random.aligned for it in promised) / counted),
        "refused_while_admissible": sum(it.ours.refused_while_admissible for it in compared),
        "worse_than_best_free": sum(it.ours.worse_than_free for it in compared),
        "scenarios": [it.document() for it in compared],
    }


_COLUMNS = {
    "scenario": "scenario",
    "GPUs given": "gpus",
    "jobs": "jobs_with_gpus_and_nics",
    "refused": "refused",
    "aligned": "aligned_share",
    "optimum": "optimum_share",
    "lowest index": "baseline_lowest_index",
    "random": "baseline_random",
    "": "met",
}


def table(compared: Sequence[Compared]) -> str:
    """The scenarios for people."""
    lines = [tuple(_COLUMNS), *(_cells(it.document()) for it in compared)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_COLUMNS))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if 2 <= column < len(widths) - 1 else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(document: dict[str, object]) -> tuple[str, ...]:
    words = {None: "-", True: "", False: "NOT MET"}
    return tuple(
        words[value] if value is None or isinstance(value, bool) else str(value)
        for value in (document[key] for key in _COLUMNS.values())
    )


def _rounded(share: float) -> float:
    return round(share, 4)


if __name__ == "__main__":
    sys.exit(main())
