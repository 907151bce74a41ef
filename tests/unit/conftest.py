"""Machines that are not there: sysfs trees of described nodes, and a daemon's inside."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.rigs.inside_daemon import InsideDaemon

settings.register_profile("unit", settings(), deadline=None)  # what a loaded machine takes long for is no failure
settings.load_profile("unit")


@pytest.fixture(scope="session")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sysfs tree of the node "eight", for reading only."""
    work = tmp_path_factory.mktemp("eight")
    build_tree(load("eight"), work)
    return work


@pytest.fixture
def daemon(tmp_path: Path, eight: Path) -> Iterator[InsideDaemon]:
    """A daemon on the node "eight" that answers on its control socket."""
    with InsideDaemon(tmp_path / "d", eight) as inside:
        yield inside
