"""Daemons that follow one another, and one on a host with an RDMA device."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nri_rdma.model.device import RdmaNetns
from tests.fakes.kernel import World
from tests.unit.attach.sandbox_life import Start
from tests.unit.rigs.attachments import Rig, make_world


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts daemons, one after the other, on one state directory."""
    rigs: list[Rig] = []

    def make(world: World, **more: object) -> Rig:
        rigs.append(Rig(state=tmp_path, world=world, **more))  # type: ignore[arg-type]  # fields of the dataclass
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def world() -> World:
    """A host with a rail and its RDMA device, on a kernel that keeps each in one namespace."""
    world = make_world(physical=True)
    world.rdma_netns = RdmaNetns.EXCLUSIVE
    world.add_rdma("mlx5_rail0", parent="0000:17:00.0")
    return world


@pytest.fixture
def rig(world: World, tmp_path: Path) -> Iterator[Rig]:
    """One daemon on that host."""
    rig = Rig(state=tmp_path, world=world)
    yield rig
    rig.close()
