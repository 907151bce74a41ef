"""A plugin of pytest that runs the tests of a list only, in the list's order, and writes down which failed."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

FILE = "NRI_RDMA_CHOSEN"
"""Environment variable with the path of a file that has one node id per line."""
FAILED = ".failed"
"""Suffix of the file beside it that this plugin writes."""
AFTER_FAILURE_S = 30.0
"""How long after a failure pytest ends at the latest: a mistake can make the fixtures' end hang, too."""


class Chosen:
    """Leaves the tests out that are not in the list."""

    def __init__(self, path: Path) -> None:
        self._order = {test: place for place, test in enumerate(path.read_text().splitlines())}
        self._failed = path.with_name(path.name + FAILED)
        self._failed.write_text("")
        self._ended = 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        order = self._order
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in order])
        items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._ended = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """End, whatever threads a mistake has left running: the interpreter would wait for them."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._ended)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with self._failed.open("a") as file:
                file.write(report.nodeid + "\n")
            late = threading.Timer(AFTER_FAILURE_S, os._exit, (pytest.ExitCode.TESTS_FAILED,))
            late.daemon = True
            late.start()


def pytest_configure(config: pytest.Config) -> None:
    """Begin, where the environment names a list."""
    path = os.environ.get(FILE)
    if path:
        config.pluginmanager.register(Chosen(Path(path)))
