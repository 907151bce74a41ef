"""Seconds that each file of tests takes: shown at the end of a run, kept in build/durations.json for the next one.

`python -m tests.durations` makes what is kept there the seed by which the suite is dealt out (tests/parts.py).
"""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

SHOWN_FILES = 15


class Durations:
    """A plugin of pytest that adds the durations of set-up, call and tear-down up, by file."""

    def __init__(self, path: Path, *, shows: bool = True) -> None:
        self._path = path
        self._shows = shows
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one phase of a test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]  # takes floats

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the slowest files of a run of several."""
        if self._shows and len(self._seconds) > 1:
            terminalreporter.section(f"the {SHOWN_FILES} slowest files")
            for line in slowest(self._seconds):
                terminalreporter.line(line)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Keep what whole files took: a run of chosen tests says nothing about their files."""
        is_choice = session.config.option.keyword or any("::" in argument for argument in session.config.args)
        if self._seconds and not is_choice:
            keep(self._path, self._seconds)


def slowest(seconds: Mapping[str, float]) -> list[str]:
    """Return a line for each of the slowest files, the slowest first."""
    ordered = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return [f"{took:8.2f} s  {file}" for file, took in ordered[:SHOWN_FILES]]


def keep(path: Path, seconds: Mapping[str, float]) -> None:
    """Write down what these files took. Others stay as they were: parts of a run write side by side."""
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = _parse(file.read())
            known.update({name: round(took, 2) for name, took in seconds.items()})
            file.truncate(0)
            file.write(json.dumps(known, indent=1, sort_keys=True) + "\n")
    except OSError:
        return  # a checkout that cannot be written, as in the lab's guest: its tests are not to fail for that


def _parse(text: str) -> dict[str, float]:
    try:
        known = json.loads(text)
    except ValueError:
        return {}  # nothing yet, or the half of a run that was killed
    return known if isinstance(known, dict) else {}


def write_seed(kept: Path, seed: Path, project: Path) -> None:
    """Write the seconds of the files that are still there, each at least a tenth of a second, as the seed."""
    known = _parse(kept.read_text())
    rounded = {file: round(took, 1) for file, took in known.items() if (project / file).is_file() and took >= 0.1}
    seed.write_text(json.dumps(rounded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    _PROJECT = Path(__file__).resolve().parents[1]
    write_seed(_PROJECT / "build/durations.json", _PROJECT / "tests/durations.json", _PROJECT)
