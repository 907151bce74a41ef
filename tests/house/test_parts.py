"""The parts of a run forget no test, run none twice, and fail when one of them does."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import durations, parts

PROJECT = parts.PROJECT
COLLECTED = ("tests/contract", "tests/kernel", "tests/unit/wire", "tests/runtime/test_rig.py")
"""Some of every kind: alone, of the host, and others."""


def all_files() -> list[str]:
    """Return every file of tests that a run of everything collects."""
    found = (path.relative_to(PROJECT).as_posix() for path in (PROJECT / "tests").rglob("test_*.py"))
    return sorted(file for file in found if not file.startswith("tests/lab/guest/"))


def collect(*arguments: str) -> list[str]:
    """Return the names of the tests that pytest collects."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *COLLECTED, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=PROJECT)
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("seconds", [parts.read_seed(), {}], ids=["by the seed", "without a seed"])
def test_every_file_is_in_exactly_one_part(count: int, seconds: dict[str, float]) -> None:
    files = all_files()
    dealt = [file for part in parts.names(count) for file in parts.choose(part, files, seconds)]
    assert sorted(dealt) == files


def test_what_pytest_collects_in_all_parts_is_what_it_collects_without_them() -> None:
    together = Counter(name for part in parts.names() for name in collect("--part", part))
    assert together == Counter(collect())


def test_what_changes_or_compares_the_host_is_in_one_part() -> None:
    first, second, alone = (parts.choose(part, all_files(), parts.read_seed()) for part in parts.names())
    assert {file for file in first | alone if file.startswith(parts.HOST)}
    assert not {file for file in second if file.startswith(parts.HOST)}


def test_each_file_that_runs_alone_is_there() -> None:
    assert not parts.ALONE_FILES.keys() - set(all_files())


def test_the_longest_file_is_dealt_first_and_the_parts_end_together() -> None:
    seconds = {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "tests/runtime/test_x.py": 4.0}
    first, second, alone = (parts.choose(part, seconds, seconds) for part in parts.names())
    assert [set(first), set(second), set(alone)] == [{"tests/runtime/test_x.py", "b", "d"}, {"a", "c"}, set()]


@pytest.mark.parametrize(
    ("codes", "code"),
    [
        ([0, 0, 0], 0),
        ([0, 0, 5], 0),
        ([0, 1, 0], 1),
        ([1, 0, 0], 1),
        ([0, 0, 1], 1),
        ([5, 2, 5], 2),
        ([5, 5], 5),
        ([0, -signal.SIGKILL], 137),
    ],
)
def test_a_failure_of_any_part_fails_the_run(codes: list[int], code: int) -> None:
    assert parts.exit_code(codes) == code


def test_the_last_lines_name_every_test_that_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "test_planted.py").write_text("def test_planted() -> None:\n    assert 1 + 1 == 3\n")
    ours = ["-p", "tests.conftest", "-c", str(PROJECT / "pyproject.toml"), "--rootdir", str(tmp_path)]
    assert parts.run([str(tmp_path / "test_planted.py"), "-q", *ours], tmp_path) == 1
    last = capsys.readouterr().out.splitlines()[-4:]
    assert [line for line in last if line.startswith("FAILED ") and "test_planted.py::test_planted" in line]


def test_a_seed_has_the_files_that_are_there(tmp_path: Path) -> None:
    kept, seed = tmp_path / "kept.json", tmp_path / "seed.json"
    durations.keep(kept, {"a.py": 1.26, "gone.py": 2.0, "short.py": 0.02})
    for name in ("a.py", "short.py"):
        (tmp_path / name).touch()
    durations.write_seed(kept, seed, tmp_path)
    assert parts.read_seed(seed) == {"a.py": 1.3}
