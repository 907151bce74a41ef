"""Every machine of which a picture is drawn."""

from __future__ import annotations

import pytest

from nri_rdma.decide.placement import Taken
from nri_rdma.model.device import Node
from tests.unit.commands.picture.jobs import MACHINES


@pytest.fixture(params=MACHINES, scope="module")
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Node, Taken]:
    """One of them, with the jobs on it."""
    return MACHINES[request.param](tmp_path_factory.mktemp("machine"))
