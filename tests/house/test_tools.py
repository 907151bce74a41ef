"""Linters, types and layers, as the project's own configuration has them."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable)

TOOLS = {
    "ruff finds nothing": [str(PYTHON), "-m", "ruff", "check", "--no-fix", "."],
    "the code has its form": [str(PYTHON), "-m", "ruff", "format", "--check", "."],
    "mypy is content, strictly": [str(PYTHON), "-m", "mypy"],
    "imports go down only": [str(PYTHON.parent / "lint-imports"), "--no-cache"],
}


@pytest.mark.parametrize("command", TOOLS.values(), ids=TOOLS.keys())
def test_the_tool_is_content(command: list[str]) -> None:
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_yaml_is_imported_as_a_package_only() -> None:
    """Threads import it late: where one imports yaml.error and another one yaml, one of them gets half a module."""
    for path in (PROJECT / "nri_rdma").rglob("*.py"):
        assert "\nfrom yaml." not in path.read_text(), path
