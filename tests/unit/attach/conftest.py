"""Daemons that follow one another."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.kernel import World
from tests.unit.attach.rig import Rig
from tests.unit.attach.sandbox_life import Start


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
