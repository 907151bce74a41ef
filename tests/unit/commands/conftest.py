"""Machines for the commands: sysfs trees of described nodes, a machine for the doctor, and a dry run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.model.device import RdmaNetns
from tests.rig.node import load
from tests.rig.systree import build_tree
from tests.unit.commands.cli.program import nri_rdma
from tests.unit.commands.doctor.bench import Bench
from tests.unit.commands.dryrun.looking import Looking
from tests.unit.rigs.inside_daemon import InsideDaemon


@pytest.fixture
def bench(daemon: InsideDaemon) -> Iterator[Bench]:
    """A machine that is well, on the node "eight"."""
    with TemporaryDirectory(prefix="doctor-") as folder:
        yield Bench(Path(folder), replace(daemon.node, rdma_netns=RdmaNetns.SHARED))


@pytest.fixture
def looking(daemon: InsideDaemon, capsys: pytest.CaptureFixture[str]) -> Iterator[Looking]:
    """It ends with the fake host as it was before, and nothing written."""
    with TemporaryDirectory(prefix="nri-") as folder:
        before = daemon.world.snapshot()
        made = Looking(Path(folder), daemon, capsys)
        yield made
        made.close()
        assert daemon.world.snapshot() == before
        assert daemon.world.held == 0
        assert list((daemon.settings.state_dir / "journal").iterdir()) == []


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
