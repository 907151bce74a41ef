"""The arithmetic: times to rows, rows to a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.figures import paired_ratio

Rounds = Sequence[Sequence[float]]
"""Nanoseconds of each call, by round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One pair of ends with one size of payload. The ratio is of latencies, to the reference in the same rounds."""

    pair: str
    payload_bytes: int
    calls_per_s: float
    median_us: float
    ratio: float

    def document(self) -> dict[str, object]:
        """The row in ttrpc-bench.json."""
        return {
            "pair": self.pair,
            "payload_bytes": self.payload_bytes,
            "calls_per_s": round(self.calls_per_s, 1),
            "median_us": round(self.median_us, 1),
            "ratio": round(self.ratio, 3),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A pair that was not measured, and why."""

    pair: str
    reason: str

    def document(self) -> dict[str, object]:
        """The row in ttrpc-bench.json."""
        return {"pair": self.pair, "skipped": self.reason}


def rows(rounds: Mapping[str, Rounds], payload_bytes: int, reference: str) -> list[Measured]:
    """What was measured of each pair; reference is the pair that ratios are to."""
    return [
        Measured(
            pair=pair,
            payload_bytes=payload_bytes,
            calls_per_s=_calls(its) * 1e9 / _total(its),
            median_us=median(value for block in its for value in block) / 1e3,
            ratio=paired_ratio(rounds[reference], its),
        )
        for pair, its in rounds.items()
    ]


def table(measured: Sequence[Measured], skipped: Sequence[Skipped], reference: str) -> str:
    """The rows for people."""
    header = f"{'pair':<22}{'payload':>10}{'calls/s':>12}{'median us':>12}{'latency / ' + reference:>34}"
    lines = [
        f"{row.pair:<22}{row.payload_bytes:>10}{row.calls_per_s:>12.0f}{row.median_us:>12.1f}{row.ratio:>34.2f}"
        for row in measured
    ]
    return "\n".join([header, *lines, *(f"{row.pair:<22}skipped: {row.reason}" for row in skipped)])


def _calls(rounds: Rounds) -> int:
    return sum(len(block) for block in rounds)


def _total(rounds: Rounds) -> float:
    return sum(value for block in rounds for value in block)
