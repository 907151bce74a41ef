"""Machines for the commands: sysfs trees of described nodes, and a daemon's inside."""

from pathlib import Path

import pytest

from tests.rig.node import load
from tests.rig.systree import build_tree


@pytest.fixture
def own_eight(tmp_path: Path) -> Path:
    """A tree of the node "eight" that a test may change."""
    build_tree(load("eight"), tmp_path / "eight")
    return tmp_path / "eight"
