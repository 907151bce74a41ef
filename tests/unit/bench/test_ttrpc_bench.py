"""The bench of the ttrpc library: its arithmetic, and what it says of pairs that were not measured."""

from __future__ import annotations

import json

from bench.ttrpc.figures import Skipped, rows, table

ROUNDS = {"reference": [[10_000.0, 20_000.0], [100_000.0, 100_000.0]], "ours": [[30_000.0], [50_000.0]]}


def test_a_row_has_calls_per_second_the_median_and_the_ratio_within_rounds() -> None:
    reference, ours = rows(ROUNDS, 100, "reference")
    assert reference.document() == {
        "pair": "reference",
        "payload_bytes": 100,
        "calls_per_s": 17391.3,
        "median_us": 60.0,
        "ratio": 1.0,
    }
    assert (ours.calls_per_s, ours.median_us, ours.ratio) == (25_000, 40, 1.25)


def test_a_pair_that_was_not_measured_is_named_with_the_reason() -> None:
    skipped = Skipped(pair="go calls ours", reason="no `go` on the PATH")
    assert json.loads(json.dumps(skipped.document())) == {"pair": "go calls ours", "skipped": "no `go` on the PATH"}
    told = table(rows(ROUNDS, 100, "reference"), [skipped], "reference").splitlines()
    assert len(told) == 4
    assert told[-1].endswith("skipped: no `go` on the PATH")
