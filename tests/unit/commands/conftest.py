"""A machine for the doctor and a dry run, also for their commands."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.model.device import RdmaNetns
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
