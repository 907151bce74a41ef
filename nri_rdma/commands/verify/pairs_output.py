"""Output of `nri-rdma verify --server` and `--connect`: a table of pairs, a JSON document, or an SVG matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any  # Any: JSON documents

from nri_rdma.commands.common.screen import Screen, TextTable
from nri_rdma.commands.picture.pair_matrix import Cell, svg_of_pairs
from nri_rdma.commands.verify.measured_pairs import MeasuredPair

DOCUMENT_VERSION = 1
_WORDS = "One-way latency (median), and bandwidth from client to server; the bar is relative to the best pair."


def show(screen: Screen, measured: Sequence[MeasuredPair]) -> None:
    """Print a row for each pair, then the errors of the pairs that failed."""
    screen.table(
        TextTable(
            headings=("CLIENT", "SERVER", "MIN", "MEDIAN", "P99", "MIB/S", "GBIT/S", "RESULT"),
            rows=tuple(map(_row, measured)),
        )
    )
    screen.line()
    for it in measured:
        if it.error:
            screen.line(str(it.error))
    works = sum(it.error is None for it in measured)
    screen.line(f"RDMA works in {works} of {len(measured)} pairs. Latencies are of one way, in us.", bold=True)


def document(measured: Sequence[MeasuredPair], *, is_whole: bool = True) -> dict[str, Any]:
    """Return the measurements as a JSON document. `is_whole`: no error has ended them early."""
    return {
        "version": DOCUMENT_VERSION,
        "works": is_whole and all(it.error is None for it in measured),
        "pairs": [_pair(it) for it in measured],
    }


def matrix(measured: Sequence[MeasuredPair]) -> str:
    """Return the measurements as a picture in SVG: a matrix with a cell for each pair."""
    best = max((it.mib_per_s for it in measured), default=0.0) or 1.0
    cells = {(it.client, it.server): _cell(it, best) for it in measured}
    rows, columns = (list(dict.fromkeys(key[side] for key in cells)) for side in (0, 1))
    return svg_of_pairs("RDMA from the client's ports (rows) to the server's", _WORDS, rows, columns, cells)


def _row(it: MeasuredPair) -> tuple[str, ...]:
    if it.latency is None:
        return it.client, it.server, "-", "-", "-", "-", "-", str(it.error.code) if it.error else ""
    latencies = (f"{number:.2f}" for number in (it.latency.least, it.latency.median, it.latency.p99))
    return it.client, it.server, *latencies, f"{it.mib_per_s:.1f}", f"{it.gbit_per_s:.2f}", "ok"


def _cell(it: MeasuredPair, best: float) -> Cell:
    if it.latency is None:
        return Cell(first="failed", second=str(it.error.code) if it.error else "", part=None)
    first, second = f"{it.latency.median:.2f} us", f"{it.gbit_per_s:.2f} Gbit/s"
    return Cell(first=first, second=second, part=it.mib_per_s / best)


def _pair(it: MeasuredPair) -> dict[str, Any]:
    told: dict[str, Any] = {"client": it.client, "server": it.server, "problem": None}
    if it.error:
        where = {"code": it.error.code, "what": it.error.what, "where": it.error.where, "next": it.error.hint}
        return {**told, "problem": where}
    if it.latency:
        told["latency_us"] = {"min": it.latency.least, "median": it.latency.median, "p99": it.latency.p99}
    return {**told, "mib_per_s": it.mib_per_s, "gbit_per_s": round(it.gbit_per_s, 3)}
