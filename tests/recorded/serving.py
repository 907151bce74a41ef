"""The daemon on a world's host, for a runtime that a test or a script plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.fakes.runtime import FakeRuntime
from tests.recorded.recording import record_in
from tests.recorded.world import World
from tests.rig.daemon import Daemon
from tests.rig.faults import Faults

RUNTIME = "v2.3.2"
"""A containerd that tells the CDI devices of a container by their names."""
SOON_S = 15.0
"""A start takes a fifth of a second; a busy machine takes its time."""


class WorldsDaemon(Daemon):
    """`start` returns when this runtime has told it its pods."""

    def __init__(self, world: World, runtime: FakeRuntime, *, faults: Faults | None = None) -> None:
        super().__init__(world, world, faults=faults, netns=world.host)
        self._runtime = runtime

    @property
    def journal(self) -> Path:
        """The folder of its journal."""
        return self.state_dir / "journal"

    @property
    def control(self) -> Path:
        """Its control socket."""
        return self.state_dir / "control.sock"

    def start_process(self) -> None:
        """Start it and have the runtime take it."""
        super().start_process()
        self._runtime.accept(SOON_S)

    def records(self) -> Mapping[str, bytes]:
        """The texts of its journal's files by their names."""
        return {path.name: path.read_bytes() for path in sorted(self.journal.glob("*.json"))}


def write_specs(world: World, specs: Mapping[str, bytes]) -> None:
    """The CDI specs of a node."""
    (world.run / "cdi").mkdir()
    for name, data in specs.items():
        (world.run / "cdi" / name).write_bytes(data)


def states_in(journal: Mapping[str, bytes]) -> Mapping[str, str]:
    """The state of each attach by its file's name without the ending."""
    return {Path(name).stem: record_in(data)["state"] for name, data in journal.items()}
