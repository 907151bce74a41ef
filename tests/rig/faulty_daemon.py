"""The daemon with one planted fault: `python -m tests.rig.faulty_daemon "after move-netdev" FLAGS...`.

The step boundary whose name begins so fails. The product has no switch for this; only a test can plant it.
"""

import sys

import click

from nri_rdma.cli.options import settings_options
from nri_rdma.config import Settings
from nri_rdma.daemon import Daemon
from nri_rdma.errors import AttachError
from nri_rdma.observe.logs import set_up_logging


def main(fault: str, flags: list[str]) -> None:
    """Run the daemon with these flags."""

    def boundary(place: str) -> None:
        if place.startswith(fault):
            raise AttachError("a planted fault", device=place.rpartition(" ")[2], where=place, hint="this is a test")

    @click.command()
    @settings_options()
    def run(settings: Settings) -> None:
        set_up_logging(settings.log_level, settings.log_format)
        Daemon(settings, boundary=boundary).run()

    run(flags)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
