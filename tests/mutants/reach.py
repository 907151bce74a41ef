"""Which tests run which lines: a plugin of pytest that writes it down while the suite runs (coverage.py contexts)."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

FILE = "NRI_RDMA_REACH"
"""Environment variable with the path of the data file that this run writes."""


class Reach:
    """Tells coverage.py the test that runs now."""

    def __init__(self, path: str) -> None:
        self._coverage = coverage.Coverage(data_file=path, source=["nri_rdma"], config_file=False, messages=False)

    def pytest_sessionstart(self) -> None:
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        self._coverage.save()


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where the environment names a file."""
    path = os.environ.get(FILE)
    if path:
        config.pluginmanager.register(Reach(path))


def read(path: Path, project: Path) -> dict[str, dict[int, list[str]]]:
    """Return the tests of each line: by file relative to the project, then by line number."""
    data = coverage.CoverageData(str(path))
    data.read()
    found: dict[str, dict[int, list[str]]] = defaultdict(dict)
    for name in data.measured_files():
        file = Path(name).relative_to(project.resolve()).as_posix()  # coverage.py follows links
        found[file] = {line: [test for test in tests if test] for line, tests in data.contexts_by_lineno(name).items()}
    return dict(found)
