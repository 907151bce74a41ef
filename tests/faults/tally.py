"""What happened how often, and what became of the pods."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """What became of a container of a pod that asks for devices."""

    COMPLETE = "complete"
    REFUSED = "refused"
    """With an error of ours that says why."""
    FAILED = "failed, not by us"
    """The test took from the runtime what a pod needs."""
    WITHOUT = "without, and reported"


@dataclass(slots=True)
class Tally:
    """Counts, by what happened."""

    seed: int
    outcomes: dict[str, Counter[Outcome]] = field(default_factory=dict)
    kills_between_steps: int = 0

    def count(self, what: str, outcome: Outcome) -> None:
        """One more."""
        self.outcomes.setdefault(what, Counter())[outcome] += 1

    def lines(self) -> list[str]:
        """The table, for people."""
        head = f"{'what happened':<46}{'times':>6}" + "".join(f"{outcome:>24}" for outcome in Outcome)
        rows = [
            f"{what:<46}{sum(counts.values()):>6}" + "".join(f"{counts[outcome]:>24}" for outcome in Outcome)
            for what, counts in sorted(self.outcomes.items())
        ]
        total = sum(sum(counts.values()) for counts in self.outcomes.values())
        return [
            head,
            *rows,
            f"{total} in all; the daemon was killed {self.kills_between_steps} times between the first"
            f" and the last step; seed {self.seed}",
        ]
