"""`nri-rdma install containerd` and `install crio` add the guard to the runtime's configuration; `uninstall` removes
it. The guard is an OCI hook that keeps a container from starting without its devices."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.commands.common.screen import Screen
from nri_rdma.commands.install.own_files import dry_run_option, packaged, show, specs_with, write
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.share_annotations import GUARD_HOOK

if TYPE_CHECKING:
    from nri_rdma.commands.common.changes import FileChange, OwnFile
    from nri_rdma.commands.install.containerd import ContainerdFiles, GuardedHandler
    from nri_rdma.host.containerd.containerd_program import ContainerdProgram

_HOOK_S = 10.0
_config_option = click.option(
    "--containerd-config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="containerd's main file; default: that of the containerd that runs, else /etc/containerd/config.toml.",
)
_crio_socket_option = click.option(
    "--crio-socket",
    type=click.Path(path_type=Path),
    default="/run/crio/crio.sock",
    show_default=True,
    metavar="PATH",
    help="Socket of the CRI-O that runs.",
)
_hook_settings = settings_options(
    "annotation_prefix",
    "state_dir",
    "control_socket",
    "kubelet_plugins_dir",
    "guard_hook",
    "containerd_socket",
    "cdi_dirs",
)


@click.command(name="containerd")
@_hook_settings
@_config_option
@click.option("--handler", "chosen", multiple=True, metavar="NAME", help="Runtime handler; default: all handlers.")
@click.option("--edit-config", is_flag=True, help="If a drop-in is not possible, add lines to containerd's main file.")
@dry_run_option
def install_containerd(
    settings: Settings, containerd_config: Path | None, chosen: tuple[str, ...], edit_config: bool, dry_run: bool
) -> None:
    """Give the containers of containerd the guard.

    The guard is an OCI hook that keeps a container from starting without its devices.

    The command writes the hook, an OCI configuration with the hook for containerd's runtime handlers, and a drop-in
    that names it. Then it asks containerd whether any other setting would change; if so, it restores everything. After
    containerd's next start, a container that asks for devices does not start without them, even if no daemon runs. Run
    it again after an upgrade of containerd. Needs root.

    \b
    Example:
      nri-rdma install containerd --dry-run
      nri-rdma install containerd
      systemctl restart containerd
    """
    from nri_rdma.commands.install.containerd import ContainerdFiles
    from nri_rdma.commands.install.hook import program_files

    hook = _hook_of(settings)
    program = _containerd(settings, containerd_config)
    before = program.configuration()
    files = ContainerdFiles(config=program.config, release=program.version())
    handlers = files.handlers(before, chosen, settings.annotation_prefix)
    last = files.last_files(handlers, edit_config)
    specs = _specs(program, handlers, hook, settings)

    def check() -> None:
        _refuse_broken(hook)
        files.refuse_other_effects(before, program.configuration(), handlers)

    write(
        (*program_files(hook, packaged(GUARD_HOOK)), *specs, *last), "containerd", _next(program.unit), dry_run, check
    )


@click.command(name="containerd")
@_hook_settings
@_config_option
@dry_run_option
def uninstall_containerd(settings: Settings, containerd_config: Path | None, dry_run: bool) -> None:
    """Take the guard out of containerd, in two steps.

    The guard is an OCI hook that keeps a container from starting without its devices.

    The first run restores containerd's configuration. Then restart containerd: while it runs with the guard, the hook
    must stay, because no container would start without it. A second run after the restart removes the hook and the OCI
    configurations.

    \b
    Example:
      nri-rdma uninstall containerd
      systemctl restart containerd
      nri-rdma uninstall containerd
    """
    from nri_rdma.commands.common.changes import to_remove, to_write
    from nri_rdma.commands.install.containerd import MERGES_SINCE, ContainerdFiles

    program = _containerd(settings, containerd_config)
    files = ContainerdFiles(config=program.config, release=MERGES_SINCE)
    restored, own = files.first_to_remove()
    changes, specs = (*to_write(restored), *to_remove(own)), files.specs()
    used = _named_by_hand(files, specs) or _runs_with(settings, files)
    _take_away(changes, specs, used, settings, "containerd", program.unit, dry_run)


@click.command(name="crio")
@_hook_settings
@_crio_socket_option
@dry_run_option
def install_crio(settings: Settings, crio_socket: Path, dry_run: bool) -> None:
    """Give the containers of CRI-O the guard.

    The guard is an OCI hook that keeps a container from starting without its devices.

    The command writes the hook, and its definition into a folder from which CRI-O reads hooks. Needs root.

    \b
    Example:
      nri-rdma install crio --dry-run
      nri-rdma install crio
      systemctl restart crio
    """
    from nri_rdma.commands.install.crio import chosen_folder, definition
    from nri_rdma.commands.install.hook import program_files
    from nri_rdma.daemon.wire_device_plugins import hook_options

    hook = _hook_of(settings)
    folder = chosen_folder(_crio_folders(crio_socket))
    file = definition(folder, hook, tuple(hook_options(settings)))
    ours = (*program_files(hook, packaged(GUARD_HOOK)), file)
    write(ours, "CRI-O", _next("crio"), dry_run, partial(_refuse_broken, hook))


@click.command(name="crio")
@_hook_settings
@_crio_socket_option
@dry_run_option
def uninstall_crio(settings: Settings, crio_socket: Path, dry_run: bool) -> None:
    """Take the guard out of CRI-O, in two steps.

    The guard is an OCI hook that keeps a container from starting without its devices.

    The first run removes the hook's definition. Then restart CRI-O: while a CRI-O runs that has read the definition,
    the hook must stay, because no container would start without it. A second run after the restart removes the hook.

    \b
    Example:
      nri-rdma uninstall crio
      systemctl restart crio
      nri-rdma uninstall crio
    """
    from nri_rdma.commands.common.changes import to_remove
    from nri_rdma.commands.install.crio import definition, started_before
    from nri_rdma.host.containerd.containerd_program import processes_of

    folders = _crio_folders(crio_socket)
    changes = to_remove(definition(folder, _hook_of(settings), ()) for folder in folders)
    pid, used = _pid_at(crio_socket) or next(processes_of("crio"), 0), ""
    if pid and any(started_before(pid, folder) for folder in folders):
        used = f"CRI-O (pid {pid}) was started before {', '.join(map(str, folders))} was changed, and may have the hook"
    _take_away(changes, (), used, settings, "CRI-O", "crio", dry_run)


def _take_away(
    changes: Sequence[FileChange],
    specs: Sequence[OwnFile],
    used: str,
    settings: Settings,
    engine: str,
    unit: str,
    dry_run: bool,
) -> None:
    """Remove the guard, an OCI hook that keeps a container from starting without its devices. `changes` are the changes
    that take it out of the runtime's configuration; if there are none, the hook's files are removed.

    `used` says why the runtime still needs the hook; "" if it does not. Raises NriRdmaError if the configuration no
    longer has the hook, but the running runtime still needs it.
    """
    from nri_rdma.commands.common.changes import carry_out_all, remove_empty, to_remove
    from nri_rdma.commands.install.hook import program_files

    screen = Screen()
    if not changes and used:
        hint = f"systemctl restart {unit}, then run this again"
        raise NriRdmaError(ErrorCode.INSTALL, f"{used}: without it no container would start", hint=hint)
    hook = _hook_of(settings)
    module, program = program_files(hook, packaged(GUARD_HOOK))
    user = _other_user(hook, settings, {it.path for it in specs})
    removals = changes or to_remove(specs if user else (*specs, program, module))
    if not changes and user and hook.exists():
        screen.line(f"{hook} stays: {user} names it.")
    if not removals:
        screen.line(f"There is nothing of the guard for {engine} here; nothing was changed.")
        return
    show(removals)
    if dry_run:
        screen.line("Nothing was changed: this is what would be removed" + (" first." if changes else "."))
        return
    carry_out_all(removals)
    for it in removals:
        if it.is_removal and it.file.path.suffix != ".json":  # the folder of hook definitions belongs to CRI-O
            remove_empty(it.file.path.parent)
    if changes:
        screen.line(
            f"{engine} has no guard from its next start on. Next: systemctl restart {unit}, then run this again: it"
            " removes the hook, without which no container would start now."
        )
    else:
        screen.line(f"{engine} knows nothing of the guard any more.")


def _next(unit: str) -> str:
    return (
        f"It reads these files only at its start. Next: systemctl restart {unit}. Running containers stay as they are;"
        " containers created after the restart have the guard."
    )


def _hook_of(settings: Settings) -> Path:
    if settings.guard_hook is None:
        what, hint = "the setting guard_hook is empty: it says where the hook is to be", "give it a path"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="guard_hook", hint=hint)
    return settings.guard_hook


def _refuse_broken(hook: Path) -> None:
    """Raise NriRdmaError if the hook cannot run on this host, because then no container would start."""
    from nri_rdma.host.engine_command import run
    from nri_rdma.host.hook_program import fault_with_interpreter
    from nri_rdma.text.share_annotations import GUARD_MODULE

    if fault := fault_with_interpreter(hook.resolve(), GUARD_MODULE):
        what, hint = f"{fault}, so no container would start", "install the Python of its first line (3.9 or newer)"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=str(hook), hint=hint)
    run(str(hook), "--help", timeout_s=_HOOK_S)


def _containerd(settings: Settings, config: Path | None) -> ContainerdProgram:
    from nri_rdma.host.containerd.containerd_program import find_containerd

    return find_containerd(_pid_at(settings.containerd_socket), config)


def _pid_at(socket: Path | None) -> int:
    """Return the PID of the process that listens on the socket; 0 if there is none or its PID is not visible."""
    from nri_rdma.doors.nri.peer import served_by

    try:
        return served_by(socket) if socket is not None else 0
    except OSError:
        return 0


def _specs(
    program: ContainerdProgram, handlers: Sequence[GuardedHandler], hook: Path, settings: Settings
) -> tuple[OwnFile, ...]:
    """Return the OCI configurations for the runtime handlers, with the hook added. Each is made from the handler's own
    base_runtime_spec, otherwise from containerd's default.

    Raises NriRdmaError if a base_runtime_spec cannot be read or is not valid.
    """
    from nri_rdma.commands.common.changes import OwnFile
    from nri_rdma.commands.install.containerd import guarded_spec, is_guarded
    from nri_rdma.daemon.wire_device_plugins import hook_options

    files = {}
    for path, base in {it.spec: it.base for it in handlers}.items():
        try:
            text = base.read_text() if base is not None else program.oci_spec()
            spec = guarded_spec(text, hook, tuple(hook_options(settings)), keeps_limits=base is not None)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            what = f"this cannot be used as an OCI configuration: {error}"
            hint = "mend it, or take it out of containerd's configuration"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=str(base or "ctr oci spec"), hint=hint) from error
        files[path] = OwnFile(path=path, data=spec.encode(), is_ours=is_guarded)
    return tuple(files.values())


def _named_by_hand(files: ContainerdFiles, specs: Sequence[OwnFile]) -> str:
    """Return a sentence if lines that nri-rdma did not write name our OCI configurations in `specs`; otherwise "". With
    such lines, containerd cannot start containers if the configurations are removed."""
    ours = {str(it.path) for it in specs}
    named = [name for name, it in files.theirs().items() if it.get("base_runtime_spec") in ours]
    return f"{files.config} gives {named[0]} the guard, by lines that nri-rdma did not write" if named else ""


def _runs_with(settings: Settings, files: ContainerdFiles) -> str:
    """Return why the running containerd still needs our OCI configurations; "" if it does not need them."""
    from nri_rdma.host.containerd.containerd_api import ContainerdError
    from nri_rdma.host.containerd.containerd_program import running_configs
    from nri_rdma.host.containerd.handlers import running_handlers

    ours = {str(it.path) for it in files.specs()}
    try:
        running = running_handlers(settings.containerd_socket)
    except ContainerdError as error:
        return f"containerd runs, but does not report its configuration ({error})"
    if isinstance(running, tuple):
        named = [it.name for it in running if it.base_spec in ours]
        return f"the running containerd gives {', '.join(named)} the guard" if named else ""
    pid = next((pid for pid, config in running_configs() if config == files.config), 0)
    elsewhere = f"containerd (pid {pid}) runs with {files.config}, and does not answer at --containerd-socket"
    return elsewhere if pid and ours else ""


def _other_user(hook: Path, settings: Settings, besides: Collection[Path]) -> str:
    """Return a file or CDI device that still names the hook; "" if nothing names it. Looks at CRI-O's hook definitions,
    at CDI specs, and at our OCI configurations of any containerd here, except those in `besides`."""
    from nri_rdma.commands.install.containerd import MERGES_SINCE, ContainerdFiles
    from nri_rdma.commands.install.crio import DEFINITION
    from nri_rdma.host.containerd.containerd_program import DEFAULT_CONFIG, running_configs
    from nri_rdma.host.containerd.handlers import CRIO_SOCKET

    mains = {DEFAULT_CONFIG.resolve(), *(config for _, config in running_configs())}
    files = [spec.path for it in sorted(mains) for spec in ContainerdFiles(config=it, release=MERGES_SINCE).specs()]
    files += [path for it in _crio_folders(CRIO_SOCKET) if (path := it / DEFINITION).is_file()]
    naming = (it for it in files if it not in besides and f'"{hook}"' in it.read_text(errors="replace"))
    return str(next(naming, "")) or specs_with(hook, settings)


def _crio_folders(socket: Path) -> tuple[Path, ...]:
    """Return the folders from which CRI-O reads hooks: the running CRI-O reports them, otherwise they are read from its
    configuration. Raises NriRdmaError if CRI-O runs but does not report them."""
    from nri_rdma.commands.common.runtime_configs import crio_hook_folders
    from nri_rdma.host.containerd.containerd_api import ContainerdError
    from nri_rdma.host.containerd.handlers import RunningCrio, running_handlers

    try:
        running = running_handlers(socket)
    except ContainerdError as error:
        what, hint = f"CRI-O runs, but does not report its configuration: {error}", "see its log"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=str(socket), hint=hint) from error
    folders = running.hook_folders if isinstance(running, RunningCrio) else ()
    return folders or crio_hook_folders(Path("/etc"), Path("/usr/share"))
