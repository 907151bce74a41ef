"""Machines for the commands: sysfs trees of described nodes, and a daemon's inside."""

from pathlib import Path

import pytest

from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import nri_rdma


@pytest.fixture
def own_eight(tmp_path: Path) -> Path:
    """A tree of the node "eight" that a test may change."""
    build_tree(load("eight"), tmp_path / "eight")
    return tmp_path / "eight"


@pytest.fixture
def saved(eight: Path, tmp_path: Path) -> Path:
    """The node "eight" as a file."""
    done = nri_rdma("snapshot", "--sysfs-root", eight, "-o", tmp_path / "node.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return tmp_path / "node.json"
