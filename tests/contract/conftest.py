"""The machines that the suite runs on."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.machines import FakeMachine, LinuxMachine, Machine, linux_machine


@pytest.fixture(params=["fake", pytest.param("linux", marks=pytest.mark.root)])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    """Each in turn."""
    if request.param == "fake":
        yield FakeMachine()
    else:
        with linux_machine(tmp_path) as linux:
            yield linux


@pytest.fixture
def linux(tmp_path: Path) -> Iterator[LinuxMachine]:
    """The real one only."""
    with linux_machine(tmp_path) as machine:
        yield machine
