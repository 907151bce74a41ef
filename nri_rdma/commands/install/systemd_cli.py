"""`nri-rdma install systemd` and `uninstall systemd`: write and remove the daemon's unit."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.install.own_files import dry_run_option, remove, write
from nri_rdma.errors import ErrorCode, NriRdmaError

if TYPE_CHECKING:
    from nri_rdma.commands.common.changes import OwnFile

_ASK_S = 10.0


@click.command(name="systemd")
@dry_run_option
def install_systemd(dry_run: bool) -> None:
    """Write the systemd unit that starts the daemon.

    The unit contains the path of this program. It is neither enabled nor started: run the commands below. Needs root.

    \b
    Example:
      nri-rdma install systemd
      systemctl daemon-reload
      systemctl enable --now nri-rdma
    """
    after = "Next: systemctl daemon-reload && systemctl enable --now nri-rdma; a daemon that runs has to be restarted."
    write((_unit(),), "systemd", after, dry_run)


@click.command(name="systemd")
@dry_run_option
def uninstall_systemd(dry_run: bool) -> None:
    """Remove the unit that `nri-rdma install systemd` wrote.

    Refused while the unit is enabled or the daemon runs. docs/guard.md says in which order to remove all of nri-rdma.

    \b
    Example:
      systemctl disable --now nri-rdma
      nri-rdma uninstall systemd
    """
    from nri_rdma.commands.install.systemd import FOLDER, WANTED_BY

    def refuse() -> None:
        if WANTED_BY.is_symlink() or _is_active():
            what, hint = "the unit is enabled, or the daemon runs", "systemctl disable --now nri-rdma, then try again"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(FOLDER), hint=hint)

    remove((_unit(),), "systemd", {}, dry_run, refuse, None)


def _unit() -> OwnFile:
    """Return the unit file that was installed with this program. Raises NriRdmaError if it is missing."""
    from nri_rdma.commands.install.systemd import UNIT, unit_file

    shared = Path(sysconfig.get_path("data")) / "share/nri-rdma" / UNIT
    checked_out = Path(__file__).resolve().parents[3] / "systemd" / UNIT
    for path in (shared, checked_out):
        if path.is_file():
            return unit_file(path.read_text(), Path(sysconfig.get_path("scripts")) / "nri-rdma")
    what, hint = f"{UNIT} did not come with this program", "install nri-rdma from its wheel, or from its folder"
    raise NriRdmaError(ErrorCode.INSTALL, what, where=str(shared), hint=hint)


def _is_active() -> bool:
    """Return whether systemd runs the daemon, or is about to: `systemctl is-active` says no of one that is not ready
    yet, and of one that is started again and again."""
    from nri_rdma.host.engine_command import run

    try:
        state = run("systemctl", "show", "--property=ActiveState", "nri-rdma", timeout_s=_ASK_S)
    except NriRdmaError:  # systemd does not run here, and so runs no daemon
        return False
    return state.strip().partition("=")[2] not in {"", "inactive", "failed"}
