"""The daemon with planted faults (see faults.py): `python -m tests.rig.faulty_daemon FOLDER FLAGS...`.

The product has no switch for this; only who makes a Daemon can plant a fault.
"""

import sys
from pathlib import Path

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.config.settings import Settings
from nri_rdma.daemon.daemon import Daemon
from nri_rdma.errors import AttachError
from nri_rdma.observe.logs import set_up_logging
from tests.rig.faults import Planted


def main(folder: Path, flags: list[str]) -> None:
    """Run the daemon with these flags."""

    @click.command()
    @settings_options()
    def run(settings: Settings) -> None:
        set_up_logging(settings.log_level, settings.log_format)
        Daemon(settings, reread=lambda: settings, boundary=Planted(folder, _error)).run()

    run(flags)


def _error(text: str, place: str, number: int | None) -> Exception:
    return AttachError(text, device=place.rpartition(" ")[2], where=place, hint="this is a test", errno=number)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
