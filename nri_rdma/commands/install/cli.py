"""`nri-rdma install` and `uninstall`: write and remove the files that other programs need for nri-rdma."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.common.options import settings_options
from nri_rdma.commands.common.screen import Screen, printable
from nri_rdma.commands.install.own_files import dry_run_option, packaged, remove, specs_with, write
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.text.annotations import asks

if TYPE_CHECKING:
    from nri_rdma.commands.common.changes import OwnFile
    from nri_rdma.commands.install.docker_files import DockerFiles
    from nri_rdma.commands.install.podman_files import PodmanFiles

_host_dir = click.option(
    "--host-dir", default="/opt/nri-rdma", show_default=True, metavar="PATH", help="The folder's path on the host."
)
_mounted_at = click.option(
    "--mounted-at",
    type=click.Path(path_type=Path, file_okay=False),
    help="The path at which the host's folder is mounted here.  [default: --host-dir]",
)


@click.group(invoke_without_command=True)
@click.pass_context
def install(context: click.Context) -> None:
    """Set up another program, or a pod's host, for nri-rdma.

    Each file is shown before it is written. Files that nri-rdma did not make are never changed, with one exception:
    containerd's main file, if you write --edit-config. Running the command again brings the files up to date.

    \b
    Example:
      nri-rdma install podman --dry-run
      nri-rdma install podman
      nri-rdma install docker
      nri-rdma install host
      nri-rdma install containerd
      nri-rdma install systemd
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
      nri-rdma uninstall docker
      nri-rdma uninstall host
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@install.command(name="podman")
@settings_options(
    "sysfs_root",
    "dev_root",
    "cgroup_root",
    "node_ip",
    "allow_default_pool",
    "annotation_prefix",
    "state_dir",
    "cdi_dirs",
)
@dry_run_option
def install_podman(settings: Settings, dry_run: bool) -> None:
    """Let podman containers ask for devices by annotations, as pods do, and by CDI devices.

    The command writes the hook, a folder with three hook definitions, a drop-in for containers.conf that names the
    folder, and the CDI devices of this node. From then on, a container of root with our annotation or such a CDI device
    gets everything it asks for, or does not start. All other containers are as before. Run it again after an upgrade,
    and when the hardware or the pools have changed. Needs podman 4.3 or newer, and root.

    \b
    Example:
      nri-rdma install podman
      podman run --annotation rdma.noderesource.dev/pod=1 IMAGE
      podman run --device rdma.noderesource.dev/nic=all IMAGE
    """
    from nri_rdma.commands.install.hook import refuse_broken
    from nri_rdma.commands.install.podman_files import parse_version
    from nri_rdma.host.podman_command import read_configuration, version_text

    files = _podman_files(settings)
    drop_in = files.drop_in(parse_version(version_text()))
    after = "Existing containers ask for their devices when they are started the next time."
    devices, notes = _cdi_devices(settings)

    def check() -> None:
        refuse_broken(files.program)
        read_configuration()

    write((*files.of_hooks(_hook()), *devices, drop_in), "podman", after, dry_run, check)
    for sentence in notes:
        click.echo(printable(sentence), err=True)


@install.command(name="docker")
@settings_options("annotation_prefix", "state_dir")
@dry_run_option
def install_docker(settings: Settings, dry_run: bool) -> None:
    """Let Docker containers ask for devices by annotations, as pods do.

    The command writes the hook, a program that is run in place of runc, and a shim that containerd finds if a container
    is started with `--runtime nri-rdma.v1`. Such a container with our annotation gets its devices or does not start.
    None of Docker's files is changed, and Docker needs no restart. Needs Docker 23 or newer, and root.

    \b
    Example:
      nri-rdma install docker
      docker run --runtime nri-rdma.v1 --annotation rdma.noderesource.dev/pod=1 IMAGE
    """
    from nri_rdma.commands.install.docker_files import RUNTIME, refuse_version
    from nri_rdma.commands.install.hook import refuse_broken
    from nri_rdma.host.docker_command import version_text

    files = _docker_files(settings)
    refuse_version(version_text())
    files.refuse_lacking()
    after = f"Containers started with --runtime {RUNTIME} can ask for devices."
    write(files.all(_hook()), "Docker", after, dry_run, partial(refuse_broken, files.program))


@install.command(name="host")
@_host_dir
@_mounted_at
def install_host(host_dir: str, mounted_at: Path | None) -> None:
    """Copy the image's programs to the host, which may have no Python.

    Run it in an init container of the image: the hooks, nri-rdma and their Python interpreter then run on the host. The
    folder keeps the previous release, for going back to it, and running programs keep their files. Files that are
    already there are not written again. The command needs no capability, only the user that owns the folder.

    \b
    Example:
      nri-rdma install host --mounted-at /host
      nri-rdma install host --mounted-at /host --host-dir /var/lib/nri-rdma
    """
    from nri_rdma.commands.install.host import HostFolder

    written = HostFolder(here=mounted_at or Path(host_dir), path=host_dir).place(Path(sys.prefix))
    Screen().line(f"{host_dir}/bin of the host has the programs of this release. Files written: {written}.")


@uninstall.command(name="host")
@_host_dir
@_mounted_at
def uninstall_host(host_dir: str, mounted_at: Path | None) -> None:
    """Remove what `nri-rdma install host` copied.

    First make sure that nothing names the hooks in the folder: a runtime that does not find its hook starts no
    container.

    \b
    Example:
      nri-rdma uninstall host --mounted-at /host
    """
    from nri_rdma.commands.install.host import HostFolder

    was_there = HostFolder(here=mounted_at or Path(host_dir), path=host_dir).remove()
    nothing = "There is nothing of `nri-rdma install host` there; nothing was changed."
    Screen().line(f"The programs in {host_dir} of the host are removed." if was_there else nothing)


@uninstall.command(name="podman")
@settings_options("annotation_prefix", "state_dir", "cdi_dirs")
@dry_run_option
@click.option("--force", is_flag=True, help="Remove it even if containers ask by annotations.")
def uninstall_podman(settings: Settings, dry_run: bool, force: bool) -> None:
    """Remove what `nri-rdma install podman` wrote.

    The drop-in is removed first, then the hooks that it names. Refused while podman has containers that ask by
    annotations: without the hooks they would silently start without their devices. Running containers keep their
    devices until they end.

    \b
    Example:
      nri-rdma uninstall podman --dry-run
      podman rm -f trainer; nri-rdma uninstall podman
    """
    from nri_rdma.commands.cdi.cdi_devices import cdi_file

    files, others = _podman_files(settings), _docker_files(settings)
    module, program, *definitions = files.of_hooks(_hook())
    spec = cdi_file(settings.cdi_dirs[0], None)
    used_by = specs_with(program.path, settings, but=spec.path) or _there(others.oci_runtime)

    def refuse() -> None:
        if not force:
            _refuse_asking_podman(settings.annotation_prefix)

    kept = dict.fromkeys((program, module), used_by) if used_by else {}
    removed = (files.any_drop_in, spec, *definitions, program, module)
    remove(removed, "podman", kept, dry_run, refuse, files.folder)


@uninstall.command(name="docker")
@settings_options("annotation_prefix", "state_dir", "cdi_dirs")
@dry_run_option
@click.option("--force", is_flag=True, help="Remove it even if containers have the runtime.")
def uninstall_docker(settings: Settings, dry_run: bool, force: bool) -> None:
    """Remove what `nri-rdma install docker` wrote.

    The shim is removed first, then the program that it runs. Refused while the runtime is Docker's default or a
    container has it, even a stopped one: such containers could not be started any more, with or without devices.
    Running containers keep their devices until they end.

    \b
    Example:
      nri-rdma uninstall docker --dry-run
      docker rm -f trainer; nri-rdma uninstall docker
    """
    files, others = _docker_files(settings), _podman_files(settings)
    module, program, oci_runtime, shim = files.all(_hook())
    used_by = specs_with(program.path, settings) or _there(others.any_drop_in)

    def refuse() -> None:
        if not force:
            _refuse_made_by_docker()

    kept = dict.fromkeys((program, module), used_by) if used_by else {}
    remove((shim, oci_runtime, program, module), "Docker", kept, dry_run, refuse, oci_runtime.path.parent)


def _hook() -> Path:
    """Return the path of the hook of podman and Docker that was installed with this program."""
    from nri_rdma.commands.cdi.hooked_devices import PROGRAM

    return packaged(PROGRAM)


def _cdi_devices(settings: Settings) -> tuple[tuple[OwnFile, ...], tuple[str, ...]]:
    """Return the file with the CDI devices of this node, and sentences about devices that are left out or removed. If
    no CDI devices can be made, no file is returned, and annotations are set up nevertheless."""
    from nri_rdma.commands.cdi.cdi_devices import cdi_file, made_by_others, own_names
    from nri_rdma.commands.cdi.generate import spec_of
    from nri_rdma.commands.cdi.hooked_devices import HookStyle, hooked
    from nri_rdma.commands.common.local_node import read_node
    from nri_rdma.commands.install.hook import HookSettings
    from nri_rdma.decide.policy import configured_policy
    from nri_rdma.host.cdi.folder import read_registry
    from nri_rdma.text.refusals import listed

    folder, registry = settings.cdi_dirs[0], read_registry(settings.cdi_dirs)
    if file := made_by_others(registry, folder):
        return (), (f"The CDI devices are those of {file}, which stays as it is.",)
    try:
        node, _ = read_node(settings, None)
        made = hooked(
            spec_of(node), node, configured_policy(settings), HookStyle(socket=HookSettings.of(settings).socket)
        )
    except NriRdmaError as error:
        file = _there(cdi_file(folder, None))
        what = (
            f"{file} stays as it is, because no CDI devices can be made now" if file else "There are no CDI devices yet"
        )
        return (), (f"{what}: {error}",)
    going = own_names(registry, folder) - {device.name for device in made.spec.devices}
    goes = (f"CDI devices that are removed: {listed(sorted(going))}.",) if going else ()
    return (cdi_file(folder, made.spec),), (*made.left_out, *goes)


def _podman_files(settings: Settings) -> PodmanFiles:
    from nri_rdma.commands.install.hook import HookSettings
    from nri_rdma.commands.install.podman_files import PodmanFiles

    return PodmanFiles(settings=HookSettings.of(settings))


def _docker_files(settings: Settings) -> DockerFiles:
    from nri_rdma.commands.install.docker_files import DockerFiles
    from nri_rdma.commands.install.hook import HookSettings

    return DockerFiles(settings=HookSettings.of(settings))


def _refuse_asking_podman(prefix: str) -> None:
    """Raise NriRdmaError if podman has containers with our annotations, because they would start without their devices
    after the removal.

    If podman cannot be asked, only print that. A faulty file of ours may keep podman from answering, and then its
    removal helps.
    """
    from nri_rdma.host.podman_command import containers

    try:
        asking = [it for it in containers() if asks(it.annotations, prefix)]
    except NriRdmaError as error:
        click.echo(f"Not known whether containers ask by annotations: {error}", err=True)
        return
    if asking:
        names = ", ".join(_told(it.name, it.is_running) for it in asking)
        raise NriRdmaError(
            ErrorCode.INSTALL,
            f"containers ask for devices by annotations, and would start without any: {names}",
            where="podman ps --all",
            hint="remove them (podman rm), or write --force",
        )


def _refuse_made_by_docker() -> None:
    """Raise NriRdmaError if Docker has containers with our runtime, or has it as its default, because such containers
    could not start after the removal.

    If Docker cannot be asked, only print that. A faulty file of ours may keep Docker from answering, and then its
    removal helps.
    """
    from nri_rdma.commands.install.docker_files import OCI_RUNTIME, RUNTIME
    from nri_rdma.host.docker_command import containers, runtimes

    try:
        known, made = runtimes(), containers()
    except NriRdmaError as error:
        click.echo(f"Not known whether containers have the runtime {RUNTIME}: {error}", err=True)
        return
    ours = {RUNTIME, *(name for name, path in known.programs.items() if path == str(OCI_RUNTIME))}
    if known.default in ours:
        what = f"{known.default} is Docker's default runtime: without it no container would start"
        hint = "take default-runtime out of /etc/docker/daemon.json and restart Docker, or write --force"
        raise NriRdmaError(ErrorCode.INSTALL, what, where="docker info", hint=hint)
    using = [it for it in made if it.runtime in ours]
    if using:
        raise NriRdmaError(
            ErrorCode.INSTALL,
            "containers have nri-rdma's runtime, and could not be started any more: "
            + ", ".join(_told(it.name, it.is_running) for it in using),
            where="docker ps --all",
            hint="remove them (docker rm), or write --force",
        )


def _told(name: str, is_running: bool) -> str:
    return f"{name} ({'runs' if is_running else 'does not run'})"


def _there(file: OwnFile) -> str:
    """Return the file's path if the file exists, otherwise ""."""
    return str(file.path) if file.path.exists() else ""
