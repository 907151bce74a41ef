"""The tables beside DRANET and runc name tests that exist, and all tests of those files."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs/peers.md").read_text()
EXAMPLES = (PROJECT / "docs/peers-examples.md").read_text()
LATER = "with the DRA driver"
FILES = (
    "tests/runtime/test_peer_behaviours.py",
    "tests/runtime/test_peer_move.py",
    "tests/cluster/test_peer_behaviours.py",
    "tests/lab/guest/test_vrfs.py",
)


def _tests(file: str) -> set[str]:
    tree = ast.parse((PROJECT / file).read_text())
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return {name for name in names if name.startswith("test_")}


def _rows() -> list[list[str]]:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| behaviour ")]
    return [line.strip("| ").split(" | ") for line in lines]


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE + EXAMPLES)
    assert len(named) > 25
    assert [f"{file}::{name}" for file, name in named if name not in _tests(file)] == [], (
        "docs/peers.md or docs/peers-examples.md names these tests, which are not there: write what they are called now"
    )


def test_every_behaviour_has_a_test_or_waits_for_the_driver() -> None:
    rows = _rows()
    assert len(rows) == 23 + 9, "DRANET has 23 tests, runc 9 behaviours"
    assert [
        row[0] for row in rows if "::" not in row[2] and LATER not in row[2] and "the same test" not in row[2]
    ] == []


def test_every_test_beside_a_peer_is_in_a_table() -> None:
    for file in FILES:
        lacking = [name for name in _tests(file) if f"{file}::{name}" not in PAGE]
        assert lacking == [], f"docs/peers.md: name these tests of {file} in the row of their behaviour"


def test_every_example_file_runs_or_is_judged() -> None:
    rows = [line.strip("| ").split(" | ") for line in EXAMPLES.splitlines() if line.startswith("| `")]
    files = [row[0] for row in rows if len(row) == 3]
    assert len(files) == len({*files}) == 54, "DRANET has 54 files that ask for NICs"
    assert [row[0] for row in rows if not re.match("runs|judged", row[-1])] == []
    assert [row[0] for row in rows if row[-1].startswith("runs") and "::" not in row[-1]] == []


def test_every_test_of_an_example_is_on_the_page() -> None:
    file = "tests/cluster/test_peer_examples.py"
    lacking = [name for name in _tests(file) if f"{file}::{name}" not in EXAMPLES]
    assert lacking == [], f"docs/peers-examples.md: name these tests of {file} in the row of their example"
