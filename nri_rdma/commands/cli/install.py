"""`nri-rdma install` and `uninstall`: set up another program for nri-rdma, and undo that."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.cli.options import settings_options
from nri_rdma.commands.cli.screen import Screen
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.annotations import asks

if TYPE_CHECKING:
    from nri_rdma.commands.install.changes import FileChange
    from nri_rdma.commands.install.podman import PodmanFiles

_dry_run = click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")


@click.group(invoke_without_command=True)
@click.pass_context
def install(context: click.Context) -> None:
    """Set up another program for nri-rdma.

    Each file is shown before it is written. Only files of nri-rdma's own are written: no file that somebody else made
    is changed. Doing it again changes nothing, or brings the files up to date.

    \b
    Example:
      nri-rdma install podman --dry-run
      nri-rdma install podman
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@click.group(invoke_without_command=True)
@click.pass_context
def uninstall(context: click.Context) -> None:
    """Undo what `nri-rdma install` did.

    \b
    Example:
      nri-rdma uninstall podman --dry-run
      nri-rdma uninstall podman
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@install.command(name="podman")
@settings_options("annotation_prefix", "state_dir")
@_dry_run
def install_podman(settings: Settings, dry_run: bool) -> None:
    """Have podman's containers ask for devices by annotations, as pods do.

    It writes the hook, a folder with the definitions of three hooks, and a drop-in of containers.conf that names the
    folder. From then on a container of root with our annotation gets its devices or does not start; all others are as
    before. Needs podman 4.3 or newer, and root.

    \b
    Example:
      nri-rdma install podman
      podman run --annotation rdma.noderesource.dev/pod=1 IMAGE
    """
    from nri_rdma.commands.install.changes import carry_out_all, to_write
    from nri_rdma.commands.install.podman import parse_version
    from nri_rdma.host.podman import read_configuration, version_text

    files = _files(settings)
    drop_in = files.drop_in(parse_version(version_text()))
    changes = to_write((*files.of_hooks(_packaged_hook()), drop_in))
    if not changes:
        Screen().line("podman is set up already; nothing was changed.")
        return
    _show(changes)
    if dry_run:
        Screen().line("Nothing was changed: this is what would be written.")
        return
    carry_out_all(changes, read_configuration)
    Screen().line("podman is set up. Containers that are there already ask when they are started the next time.")


@uninstall.command(name="podman")
@settings_options("annotation_prefix", "state_dir", "cdi_dirs")
@_dry_run
@click.option("--force", is_flag=True, help="Go on although there are containers that ask by annotations.")
def uninstall_podman(settings: Settings, dry_run: bool, force: bool) -> None:
    """Remove what `nri-rdma install podman` wrote.

    The drop-in goes first, then the hooks that it named. Refused as long as podman has containers that ask by
    annotations: without the hooks they would start without their devices, and without a word. What containers have
    they keep until they end.

    \b
    Example:
      nri-rdma uninstall podman --dry-run
      podman rm -f trainer; nri-rdma uninstall podman
    """
    from nri_rdma.commands.install.changes import carry_out_all, remove_empty, to_remove

    screen, files = Screen(), _files(settings)
    program, *definitions = files.of_hooks(_packaged_hook())
    used_by = _specs_with(program.path, settings)
    changes = to_remove((files.any_drop_in, *definitions, *(() if used_by else (program,))))
    if used_by:
        screen.line(f"{program.path} stays: {used_by} names it.")
    if not changes:
        screen.line("There is nothing of `nri-rdma install podman` here; nothing was changed.")
        return
    if not force:
        _refuse_asking(settings.annotation_prefix)
    _show(changes)
    if dry_run:
        screen.line("Nothing was changed: this is what would be removed.")
        return
    carry_out_all(changes)
    remove_empty(files.folder)
    remove_empty(files.folder.parent)
    screen.line("podman knows nothing of nri-rdma any more.")


def _files(settings: Settings) -> PodmanFiles:
    from nri_rdma.commands.install.podman import HookSettings, PodmanFiles

    return PodmanFiles(settings=HookSettings.of(settings))


def _packaged_hook() -> Path:
    """Return the hook that came with this program. Raises NriRdmaError."""
    from nri_rdma.commands.hooked_cdi import PROGRAM

    beside = Path(sysconfig.get_path("scripts")) / PROGRAM
    checked_out = Path(__file__).resolve().parents[3] / "hooks" / PROGRAM
    for path in (beside, checked_out):
        if path.is_file():
            return path
    what, hint = f"{PROGRAM} did not come with this program", "install nri-rdma from its wheel, or from its folder"
    raise NriRdmaError(ErrorCode.INSTALL, what, where=str(beside), hint=hint)


def _show(changes: Iterable[FileChange]) -> None:
    screen = Screen()
    for change in changes:
        for line in change.shown().splitlines():
            screen.raw(line)


def _refuse_asking(prefix: str) -> None:
    """Raise NriRdmaError as long as podman has containers that ask by annotations. Of a podman that is gone, or cannot
    say, that is told and no obstacle: what is to be removed may be what is wrong with it."""
    from nri_rdma.host.podman import containers

    try:
        asking = [it for it in containers() if asks(it.annotations, prefix)]
    except NriRdmaError as error:
        click.echo(f"Not known whether containers ask by annotations: {error}", err=True)
        return
    if asking:
        names = ", ".join(f"{it.name} ({'runs' if it.is_running else 'does not run'})" for it in asking)
        raise NriRdmaError(
            ErrorCode.INSTALL,
            f"containers ask for devices by annotations, and would start without any: {names}",
            where="podman ps --all",
            hint="remove them (podman rm), or write --force",
        )


def _specs_with(hook: Path, settings: Settings) -> str:
    """Return a CDI device whose spec names this hook; "" where there is none."""
    from nri_rdma.host.cdi.folder import read_registry

    for name, device in read_registry(settings.cdi_dirs).devices.items():
        if any(it.path == str(hook) for it in (*device.spec_edits.hooks, *device.device.edits.hooks)):
            return f"the CDI device {name}"
    return ""
