"""Linters, types and layers, as the project's own configuration has them."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
PYTHON = Path(sys.executable)

TOOLS = {
    "ruff finds nothing": ("`make format` mends some of it", [str(PYTHON), "-m", "ruff", "check", "--no-fix", "."]),
    "the code has its form": ("run `make format`", [str(PYTHON), "-m", "ruff", "format", "--check", "."]),
    "mypy is content, strictly": ("mend the types at the lines above", [str(PYTHON), "-m", "mypy"]),
    "imports go down only": (
        "import it in a layer that may (pyproject.toml, [tool.importlinter]), or hand it in as a parameter",
        [str(PYTHON.parent / "lint-imports"), "--no-cache"],
    ),
}


@pytest.mark.timeout(600)  # without a cache and beside other work, mypy takes minutes
@pytest.mark.parametrize(("step", "command"), TOOLS.values(), ids=TOOLS.keys())
def test_the_tool_is_content(step: str, command: list[str]) -> None:
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\nNext: {step}"


def test_yaml_is_imported_as_a_package_only() -> None:
    """Threads import it late: where one imports yaml.error and another one yaml, one of them gets half a module."""
    for path in (PROJECT / "nri_rdma").rglob("*.py"):
        assert "\nfrom yaml." not in path.read_text(), f"{path}: write `import yaml`"
