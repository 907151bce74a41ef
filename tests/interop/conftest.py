"""Go programs are built when the first test asks for one, which takes longer than a test may otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import golang

HERE = Path(__file__).parent
GoProgram = Callable[[str], Path]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.timeout(golang.BUILD_TIMEOUT_S + 60))


@pytest.fixture(scope="session")
def go_program() -> GoProgram:
    """The built program of that name, or a skip that says what this machine lacks."""

    def built(name: str) -> Path:
        try:
            return golang.program(name)
        except golang.MissingError as missing:
            pytest.skip(str(missing))

    return built
