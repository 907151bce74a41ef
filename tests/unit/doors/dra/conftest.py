"""The node that claims are prepared on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.doors.dra.claimed import Claimed, claimed
from tests.unit.rigs.inside_daemon import InsideDaemon


@pytest.fixture
def node(daemon: InsideDaemon, tmp_path: Path) -> Iterator[Claimed]:
    """A node with a pool of claims."""
    with claimed(daemon, tmp_path / "claims") as made:
        made.serve_claims()
        yield made
