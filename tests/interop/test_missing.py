"""Where Go is missing and cannot be fetched, tests against Go peers are skipped with a reason; where it is required,
they fail."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("file", "of_file"),
    [
        ("test_ttrpc_example.py", r"the Go peers cannot be built: no Go 1.26"),
        ("test_cdi.py", r"the Go library of CDI cannot be built: no Go 1.26"),
    ],
)
@pytest.mark.parametrize(("wish", "code", "ending"), [("required", 1, "FAILED|ERROR"), ("", 0, "SKIPPED")])
def test_a_machine_without_go(file: str, of_file: str, wish: str, code: int, ending: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", f"tests/interop/{file}", "-q", "-rsfE", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PATH": str(tmp_path), "NRI_RDMA_GO": wish, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert re.search(of_file, done.stdout)
    assert re.search(rf"^({ending}) ", done.stdout, re.MULTILINE)
    assert "passed" not in done.stdout.splitlines()[-1]
