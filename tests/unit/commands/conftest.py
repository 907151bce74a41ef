"""A machine for the doctor, also for its command."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nri_rdma.model.device import RdmaNetns
from tests.unit.commands.cli.daemon import InsideDaemon
from tests.unit.commands.doctor.bench import Bench


@pytest.fixture
def bench(daemon: InsideDaemon) -> Iterator[Bench]:
    """A machine that is well, on the node "eight"."""
    with TemporaryDirectory(prefix="doctor-") as folder:
        yield Bench(Path(folder), replace(daemon.node, rdma_netns=RdmaNetns.SHARED))
