"""Readings of CDI specs that a test ends when it says so."""

from __future__ import annotations

from concurrent.futures import Future

from nri_rdma.engine.specs import SpecCache
from tests.unit.rigs.engine import PREFIX, Daemon, Others


class Rereading:
    """Readings of the specs that somebody asked for: under way until the test ends them; later ones end at once."""

    def __init__(self) -> None:
        self.asked: list[Future[None]] = []
        self._is_over = False

    def make_others(self, daemon: Daemon) -> Others:
        specs = SpecCache(
            node=lambda: daemon.node.current, registry=lambda: daemon.registry, prefix=PREFIX, reread=self._ask
        )
        return Others(specs=specs, rereads=(self._ask,))

    def end(self) -> None:
        """They have found what the node's registry has."""
        self._is_over = True
        for reading in self.asked:
            reading.set_result(None)

    def _ask(self) -> Future[None]:
        self.asked.append(Future())
        if self._is_over:
            self.asked[-1].set_result(None)
        return self.asked[-1]
