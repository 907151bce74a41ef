"""The index of the decisions, docs/adr/README.md."""

import runpy
from pathlib import Path

ADR = Path(__file__).resolve().parents[2] / "docs" / "adr"


def test_the_index_has_each_decision_with_its_status() -> None:
    index = (ADR / "README.md").read_text(encoding="utf-8")
    assert runpy.run_path(str(ADR.with_name("generate.py")))["decisions_with_table"](index) == index, (
        "run `make generate`, which writes the table of docs/adr/README.md anew"
    )


def test_a_decision_is_replaced_by_one_that_is_there() -> None:
    for path in sorted(ADR.glob("[0-9]*.md")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("**Status:**"):
                assert (ADR / line.rpartition("(")[2].rstrip(")")).is_file(), f"{path.name}: {line}"
