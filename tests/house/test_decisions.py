"""The decisions, docs/adr."""

from pathlib import Path

ADR = Path(__file__).resolve().parents[2] / "docs" / "adr"


def test_a_decision_is_replaced_by_one_that_is_there() -> None:
    for path in sorted(ADR.glob("[0-9]*.md")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("**Status:**"):
                assert (ADR / line.rpartition("(")[2].rstrip(")")).is_file(), f"{path.name}: {line}"
