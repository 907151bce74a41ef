"""The daemon whose attach waits at one place: `python -m tests.rig.gated_daemon GATE "after move-netdev" FLAGS...`.

Every step boundary whose name begins so is passed when the file GATE is there.
"""

import sys
from pathlib import Path

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.daemon import Daemon
from nri_rdma.observe.logs import set_up_logging
from tests.rig.deadline import wait_until

_PATIENCE_S = 120.0
"""For a test that died: its daemon goes on, and ends."""


def main(gate: Path, place: str, flags: list[str]) -> None:
    """Run the daemon with these flags."""

    def boundary(name: str) -> None:
        if name.startswith(place):
            wait_until(gate.exists, f"the gate {gate} to open", _PATIENCE_S)

    @click.command()
    @settings_options()
    def run(settings: Settings) -> None:
        set_up_logging(settings.log_level, settings.log_format)
        Daemon(settings, reread=lambda: settings, boundary=boundary).run()

    run(flags)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
