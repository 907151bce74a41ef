"""The daemon on a slow kernel: `python -m tests.rig.slow_daemon SECONDS PLACE[,PLACE...] FLAGS...`.

At every step boundary whose name begins so it stands still for that long, as a driver would. The product has no switch
for this; only a test can plant it.
"""

import subprocess
import sys
import time
from collections.abc import Sequence

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.daemon import Daemon as Product
from nri_rdma.observe.logs import set_up_logging
from tests.rig.daemon import EXCLUSIVE_FIRST, PROJECT, Daemon, Place
from tests.rig.fabric import Fabric

MOVES = ("before move-netdev", "before undo move-netdev")
"""What changes the namespace of a netdev."""


class SlowDaemon(Daemon):
    """One `nri-rdma run` that stands still for `delay_s` at some of its step boundaries."""

    def __init__(
        self, place: Place, fabric: Fabric, delay_s: float, places: Sequence[str] = MOVES, *, extra: Sequence[str] = ()
    ) -> None:
        super().__init__(place, fabric, extra=(*EXCLUSIVE_FIRST, *extra))
        self.delay_s = delay_s
        self._places = places

    def start_process(self) -> None:
        """Starts it and does not wait."""
        self._mark_log()
        command = [sys.executable, "-m", "tests.rig.slow_daemon", str(self.delay_s), ",".join(self._places)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._flags], cwd=PROJECT, stderr=log, stdin=subprocess.DEVNULL
            )


def main(delay_s: float, places: tuple[str, ...], flags: list[str]) -> None:
    """Run the daemon with these flags."""

    def boundary(place: str) -> None:
        if place.startswith(places):
            time.sleep(delay_s)

    @click.command()
    @settings_options()
    def run(settings: Settings) -> None:
        set_up_logging(settings.log_level, settings.log_format)
        Product(settings, reread=lambda: settings, boundary=boundary).run()

    run(flags)


if __name__ == "__main__":
    main(float(sys.argv[1]), tuple(sys.argv[2].split(",")), sys.argv[3:])
