"""The arithmetic: times to figures, figures to rows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. `ratio` is to the floor, `target` the most that it may be, `limit` the most that the value
    may be; without either it is told for information only."""

    figure: str
    value: float
    unit: str
    floor: float
    ratio: float
    target: float | None = None
    limit: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether target and limit are met; None when there is none."""
        if self.target is None and self.limit is None:
            return None
        return (self.target is None or self.ratio <= self.target) and (self.limit is None or self.value <= self.limit)

    @property
    def wanted(self) -> str:
        """Target and limit, for people."""
        words = [f"<= {self.target}"] if self.target is not None else []
        return ", ".join([*words, *([f"<= {self.limit:g} {self.unit}"] if self.limit is not None else [])])

    def document(self) -> dict[str, object]:
        """The row in bench.json."""
        return {
            "figure": self.figure,
            "value": _rounded(self.value),
            "unit": self.unit,
            "floor": _rounded(self.floor),
            "ratio": _rounded(self.ratio),
            "target": self.target,
            "limit": self.limit,
            "met": self.met,
        }


def paired_ratio(floor: Sequence[Sequence[float]], ours: Sequence[Sequence[float]]) -> float:
    """The median over the rounds of the ratio of the rounds' medians.

    A round's two blocks follow each other at once, so that what else the machine does falls on both; comparing medians
    of the whole run would compare different minutes.
    """
    return median(median(mine) / median(its) for its, mine in zip(floor, ours, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def paired_row(
    figure: str,
    floor: Sequence[Sequence[float]],
    ours: Sequence[Sequence[float]],
    *,
    unit: str,
    scale: float = 1.0,
    target: float | None = None,
    limit: float | None = None,
) -> Row:
    """Medians of all values, and the paired ratio."""
    return Row(
        figure=figure,
        value=median(_flat(ours)) * scale,
        unit=unit,
        floor=median(_flat(floor)) * scale,
        ratio=paired_ratio(floor, ours),
        target=target,
        limit=limit,
    )


def p99_row(
    figure: str,
    floor: Sequence[Sequence[float]],
    ours: Sequence[Sequence[float]],
    *,
    scale: float,
    unit: str = "us",
    target: float | None = None,
) -> Row:
    """The 99th percentiles of all values; on a shared machine they measure the neighbours, too."""
    mine, its = percentile(_flat(ours), 0.99), percentile(_flat(floor), 0.99)
    return Row(figure=figure, value=mine * scale, unit=unit, floor=its * scale, ratio=mine / its, target=target)


def table(rows: Sequence[Row]) -> str:
    """The rows for people."""
    header = ("figure", "value", "floor", "unit", "ratio", "target", "")
    verdicts = {None: "", True: "met", False: "NOT MET"}
    cells = [header] + [
        (
            row.figure,
            f"{_rounded(row.value)}",
            f"{_rounded(row.floor)}",
            row.unit,
            f"{row.ratio:.2f}",
            row.wanted,
            verdicts[row.met],
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = (
        "  ".join(
            cell.ljust(width) if column in {0, 3, 6} else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
    return "\n".join(lines)


def exit_code(rows: Sequence[Row]) -> int:
    """1 when a target is missed."""
    return 1 if any(row.met is False for row in rows) else 0


def _flat(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [value for block in rounds for value in block]


def _rounded(value: float) -> float:
    return round(value, 3 if value < 10 else 1)
