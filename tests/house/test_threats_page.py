"""The table of threats names tests that exist."""

import ast
import re
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PAGE = (PROJECT / "docs/threats.md").read_text()


def _functions(file: str) -> set[str]:
    tree = ast.parse((PROJECT / file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert len(named) > 40
    missing = [f"{file}::{name}" for file, name in named if name not in _functions(file)]
    assert missing == [], "docs/threats.md names these tests, which are not there: write the names that they have now"


def test_every_threat_has_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| Threat ")]
    assert len(rows) > 20
    assert [row for row in rows if "::" not in row.split(" | ")[2]] == [], "name a test in the last column"


def test_every_test_of_an_attack_is_in_the_table() -> None:
    for path in sorted(PROJECT.glob("tests/kernel/test_hostile_*.py")):
        file = path.relative_to(PROJECT).as_posix()
        tests = {name for name in _functions(file) if name.startswith("test_")}
        lacking = [name for name in tests if f"{file}::{name}" not in PAGE]
        assert lacking == [], f"docs/threats.md: name these tests of {file} in the row of their threat"
