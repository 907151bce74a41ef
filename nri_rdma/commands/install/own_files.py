"""Shows, writes and removes the files of `nri-rdma install` and `uninstall`, for all of their subcommands."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.common.screen import Screen
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NriRdmaError

if TYPE_CHECKING:
    from nri_rdma.commands.common.changes import FileChange, OwnFile

dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be changed, and change nothing.")


def write(
    files: Iterable[OwnFile], engine: str, after: str, dry_run: bool, check: Callable[[], None] = lambda: None
) -> None:
    """Show the files that are missing or differ, and write them. `engine` is the name of the program for which they
    are, and `after` a sentence to print at the end.

    `check` runs after the writing, also where nothing had to be written; if it raises, all files are restored. With
    `dry_run`, nothing is written.
    """
    from nri_rdma.commands.common.changes import carry_out_all, to_write

    screen, changes = Screen(), to_write(files)
    if not changes:
        check()
        screen.line(f"{engine} is set up already; nothing was changed.")
        return
    show(changes)
    if dry_run:
        screen.line("Nothing was changed: this is what would be written.")
        return
    carry_out_all(changes, check)
    screen.line(f"{engine} is set up. {after}")


def remove(
    files: Iterable[OwnFile],
    engine: str,
    kept: Mapping[OwnFile, str],
    dry_run: bool,
    refuse: Callable[[], None],
    folder: Path | None,
) -> None:
    """Show the files that exist, and remove them in the given order, then `folder` if it is empty. `engine` is the name
    of the program for which they were installed.

    `kept` maps a file that must stay to what still needs it, such as a CDI device. `refuse` is called before anything
    is removed, and raises NriRdmaError if containers still need the files.
    """
    from nri_rdma.commands.common.changes import carry_out_all, remove_empty, to_remove

    screen = Screen()
    changes = to_remove(file for file in files if file not in kept)
    for file, user in kept.items():
        screen.line(f"{file.path} stays: {user} names it.")
    if not changes:
        screen.line(f"There is nothing of `nri-rdma install {engine.lower()}` here; nothing was changed.")
        return
    refuse()
    show(changes)
    if dry_run:
        screen.line("Nothing was changed: this is what would be removed.")
        return
    carry_out_all(changes)
    if folder is not None:
        remove_empty(folder)
        remove_empty(folder.parent)
    screen.line(f"{engine} knows nothing of nri-rdma any more.")


def packaged(name: str) -> Path:
    """Return the path of the hook program `name` that was installed with this program. The hook's module is beside it.
    Raises NriRdmaError if one of them is missing."""
    module = f"{name.replace('-', '_')}.py"
    beside = Path(sysconfig.get_path("scripts")) / name
    checked_out = Path(__file__).resolve().parents[3] / "hooks" / name
    for path in (beside, checked_out):
        if path.is_file() and path.with_name(module).is_file():
            return path
    what = f"{name} and {module} did not come with this program"
    hint = "install nri-rdma from its wheel, or from its folder"
    raise NriRdmaError(ErrorCode.INSTALL, what, where=str(beside), hint=hint)


def show(changes: Iterable[FileChange]) -> None:
    """Print the differences between the present files and the wanted files."""
    screen = Screen()
    for change in changes:
        for line in change.shown().splitlines():
            screen.raw(line)


def specs_with(hook: Path, settings: Settings, but: Path | None = None) -> str:
    """Return "the CDI device NAME" for a CDI device that names this hook; "" if none does. The spec file `but` is
    ignored."""
    from nri_rdma.host.cdi.folder import read_registry

    for name, device in read_registry(settings.cdi_dirs).devices.items():
        hooks = (*device.spec_edits.hooks, *device.device.edits.hooks)
        if device.file != str(but) and any(it.path == str(hook) for it in hooks):
            return f"the CDI device {name}"
    return ""
