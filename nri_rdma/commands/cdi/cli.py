"""`nri-rdma cdi`: lists, checks and writes the CDI specs of this node."""

from __future__ import annotations

import os
import stat
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: JSON documents

import click

from nri_rdma.commands.common.options import (
    annotation_prefix_option,
    asking_options,
    output_option,
    settings_options,
    snapshot_option,
)
from nri_rdma.commands.common.screen import Screen, TextTable, print_json, printable
from nri_rdma.config.settings import Settings
from nri_rdma.model.request import Mode
from nri_rdma.text.quantities import bytes_of

if TYPE_CHECKING:
    from nri_rdma.cdi.registry import Registry, ResolvedDevice
    from nri_rdma.cdi.spec import DeviceNode
    from nri_rdma.errors import CdiError

DOCUMENT_VERSION = 1
EXIT_FAILED = 1
_STDOUT = Path("-")


@click.group(invoke_without_command=True)
@click.pass_context
def cdi(context: click.Context) -> None:
    """Look at, check and write CDI specs.

    \b
    Example:
      nri-rdma cdi list
      nri-rdma cdi check /etc/cdi
      nri-rdma cdi generate --output /etc/cdi
      nri-rdma cdi guard /etc/cdi/vendor.yaml
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


# list


@cdi.command(name="list")
@asking_options("cdi_dirs")
@output_option
def list_(settings: Settings, output: str) -> None:
    """Show the devices that containers can ask for by CDI.

    Files that cannot be used are listed below the devices of the other files. Needs no root.

    \b
    Example:
      nri-rdma cdi list
      nri-rdma cdi list --cdi-dirs /etc/cdi,/run/cdi -o json
    """
    from nri_rdma.host.cdi.folder import read_registry

    directories = settings.cdi_dirs
    registry = read_registry(directories)
    if output == "json":
        print_json(_registry_document(registry, directories))
        return
    screen = Screen()
    _show_devices(screen, registry, directories)
    _show_problems(screen, registry.problems)


def _show_devices(screen: Screen, registry: Registry, directories: tuple[Path, ...]) -> None:
    if not registry.devices:
        screen.line(f"There is no CDI device in {', '.join(map(str, directories))}.")
        return
    devices = sorted(registry.devices.values(), key=lambda item: item.file)  # stable: by name within a file
    for number, (file, of_file) in enumerate(groupby(devices, key=lambda item: item.file)):
        if number:
            screen.line()
        rows = tuple((it.name, "yes" if it.rdma_nodes else "no", _nodes_words(it.nodes)) for it in of_file)
        screen.table(TextTable(title=file, headings=("DEVICE", "RDMA", "NODES"), rows=rows))


def _nodes_words(nodes: tuple[DeviceNode, ...]) -> str:
    return ", ".join(map(_node_words, nodes)) or "none"


def _node_words(node: DeviceNode) -> str:
    name = node.path.removeprefix("/dev/")
    return name if node.major is None else f"{name} {node.major}:{node.minor or 0}"


def _show_problems(screen: Screen, problems: tuple[CdiError, ...]) -> None:
    if problems:
        screen.line()
        screen.line(f"{len(problems)} problem{'' if len(problems) == 1 else 's'}", bold=True)
    for problem in problems:
        screen.line(str(problem))


def _registry_document(registry: Registry, directories: tuple[Path, ...]) -> dict[str, Any]:
    return {
        "version": DOCUMENT_VERSION,
        "directories": list(map(str, directories)),
        "devices": list(map(_device_document, registry.devices.values())),
        "problems": list(map(_problem_document, registry.problems)),
    }


def _device_document(item: ResolvedDevice) -> dict[str, Any]:
    from nri_rdma.cdi.encoding import edits_document

    return {
        "name": item.name,
        "file": item.file,
        "rdma": bool(item.rdma_nodes),
        "nodes": [node.path for node in item.nodes],
        "annotations": dict(item.device.annotations),
        "edits": edits_document(item.device.edits),
        "spec_edits": edits_document(item.spec_edits),
    }


def _problem_document(error: CdiError) -> dict[str, Any]:
    return {
        "code": str(error.code),
        "file": error.file,
        "line": error.line or None,
        "path": error.path,
        "what": error.what,
        "hint": error.hint,
        "text": str(error),
    }


# check


@cdi.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path), metavar="FILE|DIR...")
@annotation_prefix_option
@output_option
@click.pass_context
def check(context: click.Context, paths: tuple[Path, ...], annotation_prefix: str, output: str) -> None:
    """Find what is wrong with CDI specs.

    In a directory, every *.json and *.yaml file is checked, and whether two files define the same device. The command
    reports what runtimes refuse, what they understand differently than the author meant, and wrong requests in our
    annotation. Ends with 1 if there is any problem. Needs no root.

    \b
    Example:
      nri-rdma cdi check /etc/cdi /var/run/cdi
      nri-rdma cdi check vendor.yaml -o json
    """
    files, problems = _check(paths, annotation_prefix)
    if output == "json":
        document = {
            "version": DOCUMENT_VERSION,
            "files": list(files),
            "problems": list(map(_problem_document, problems)),
        }
        print_json(document)
    else:
        screen = Screen()
        for problem in problems:
            screen.raw(str(problem))  # a line each, for grep
        count = f"{len(files)} file{'' if len(files) == 1 else 's'}"
        screen.line(f"{count} checked, {len(problems)} problem{'' if len(problems) == 1 else 's'}.")
    if problems:
        context.exit(EXIT_FAILED)


def _check(paths: tuple[Path, ...], prefix: str) -> tuple[tuple[str, ...], tuple[CdiError, ...]]:
    """Return the files that were checked, and the problems found in them."""
    from nri_rdma.cdi.asking import inspect_asking
    from nri_rdma.cdi.registry import resolve
    from nri_rdma.errors import CdiError
    from nri_rdma.host.cdi.folder import read_file, scan

    files: list[str] = []
    problems: list[CdiError] = []
    for path in paths:
        if path.is_dir():
            continue
        files.append(str(path))
        try:
            problems += inspect_asking(read_file(path), str(path), prefix).problems
        except CdiError as error:
            problems.append(error)
    found = scan([path for path in paths if path.is_dir()], partial(inspect_asking, prefix=prefix))
    problems += resolve(found.specs, found.problems).problems
    return (*files, *found.files), tuple(problems)


# guard


@cdi.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
@settings_options("guard_hook", "annotation_prefix", "state_dir", "control_socket")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Where to write the spec; - is stdout. By default FILE is replaced when the new file is complete.",
)
def guard(settings: Settings, file: Path, output: Path | None) -> None:
    """Write the guard into the CDI spec of another driver.

    The guard is an OCI hook that keeps a container from starting without its devices. Each CDI device with our
    annotation gets it: while no daemon runs, a container with the device does not start, instead of starting with only
    the driver's device nodes. The rest of the spec stays, except comments and the layout of YAML. Use it on nodes of
    Kubernetes only: podman and Docker could not start containers with such a device.

    Run the command again when the driver has written its file again, because the hook is then gone.

    \b
    Example:
      nri-rdma cdi guard /etc/cdi/vendor.yaml
      nri-rdma cdi guard /etc/cdi/vendor.yaml --output -
    """
    from nri_rdma.cdi.encoding import encode
    from nri_rdma.cdi.reading import parse
    from nri_rdma.commands.cdi.guarded_spec import guarded_devices, with_guard
    from nri_rdma.daemon.wire_device_plugins import hook_options
    from nri_rdma.host.cdi.folder import read_file
    from nri_rdma.host.hook_program import fault_of
    from nri_rdma.host.whole_file import write_whole
    from nri_rdma.text.share_annotations import GUARD_MODULE

    hook = settings.guard_hook
    if hook is None:
        raise click.BadParameter("name the guard's hook on the host", param_hint="--guard-hook")
    before = parse(read_file(file), str(file))
    spec = with_guard(before, settings.annotation_prefix, hook, tuple(hook_options(settings)))
    if output == _STDOUT:
        click.echo(encode(spec), nl=False)
        return
    target = Path(os.path.realpath(output or file))  # replace the file that a symbolic link points to, not the link
    if output is not None or spec != before:
        write_whole(target, encode(spec), stat.S_IMODE(file.stat().st_mode))
    screen, names = Screen(), guarded_devices(spec)
    words = f"has the guard for {len(names)} of its {len(spec.devices)} devices" + (":" if names else ".")
    screen.line(f"{target} {words}")
    for name in names:
        screen.raw(f"  {name}")
    if names and (fault := fault_of(hook, GUARD_MODULE)):
        click.echo(printable(f"{fault}: until that is mended, no container with these devices starts."), err=True)


# generate


@cdi.command()
@settings_options(
    "sysfs_root",
    "dev_root",
    "cgroup_root",
    "node_ip",
    "api_server",
    "allow_default_pool",
    "annotation_prefix",
    "state_dir",
)
@snapshot_option
@click.option("--device", "devices", multiple=True, metavar="NAME", help="Only this RDMA device; may be given again.")
@click.option("--pool", metavar="NAME", help="Only the devices of this pool, as rdma.noderesource.dev/nic-NAME.")
@click.option(
    "--mode", type=click.Choice([mode.value for mode in Mode]), help="Ask nri-rdma to give the device in this mode."
)
@click.option("--memlock", metavar="unlimited|BYTES", help="Ask it to set RLIMIT_MEMLOCK.")
@click.option(
    "--hooks",
    is_flag=True,
    help="Add hooks by which podman and Docker ask the daemon: the container also gets the netdev and memlock.",
)
@click.option(
    "--hook",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="PATH",
    help="Path of the hook on the host, with its module beside it; default: /usr/local/lib/nri-rdma/nri-rdma-oci-hook.",
)
@click.option("--hca-handles", type=click.IntRange(1, 2**31 - 1), help="Ask it to limit the handles of each device.")
@click.option("--hca-objects", type=click.IntRange(1, 2**31 - 1), help="Ask it to limit the objects of each device.")
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, allow_dash=True, path_type=Path),
    default=_STDOUT,
    show_default=True,
    metavar="DIR",
    help="Folder for the file, such as /etc/cdi; - is stdout. An older file is replaced when the new one is complete.",
)
def generate(
    settings: Settings,
    snapshot: Path | None,
    devices: tuple[str, ...],
    pool: str | None,
    mode: str | None,
    memlock: str | None,
    hooks: bool,
    hook: Path | None,
    hca_handles: int | None,
    hca_objects: int | None,
    output: Path,
) -> None:
    """Write a CDI spec with the RDMA devices of this node.

    Each device becomes a CDI device, rdma.noderesource.dev/nic=NAME, with its character devices. Devices that the host
    uses are left out unless you name them. Write the spec again when the hardware has changed. Root is needed only to
    write to the directory.

    --mode, --memlock and the limits become an annotation of each CDI device. nri-rdma reads it when a container gets
    the device. Annotations need CDI 0.6.0.

    With --hooks, a container of podman or Docker gets the whole device: hooks in the spec ask the daemon, which moves
    the netdev in and back out, according to the pools and rules of the configuration.

    \b
    Example:
      nri-rdma cdi generate --output /etc/cdi
      podman run --device rdma.noderesource.dev/nic=mlx5_0 IMAGE
      nri-rdma cdi generate --pool rails --mode exclusive --output /etc/cdi
      nri-rdma cdi generate --hooks --output /etc/cdi
    """
    from nri_rdma.cdi.encoding import encode
    from nri_rdma.cdi.names import file_name
    from nri_rdma.commands.cdi.cdi_devices import take_out
    from nri_rdma.commands.cdi.generate import NIC, SpecAsks, of_pool, spec_of
    from nri_rdma.commands.cdi.hooked_devices import ALL, HOOK, HookStyle, hooked
    from nri_rdma.commands.common.local_node import read_node
    from nri_rdma.decide.policy import configured_policy
    from nri_rdma.host.cdi.write import write_spec

    if hook is not None and not hooks:
        raise click.BadParameter("write --hooks, too", param_hint="--hook")
    wanted, bytes_ = Mode(mode) if mode is not None else None, _memlock(memlock)
    asks = SpecAsks(mode=wanted, memlock=bytes_, hca_handles=hca_handles, hca_objects=hca_objects)
    annotations = ((settings.annotation_prefix, asks.text),) if asks.text and not hooks else ()
    (node, _), kind = read_node(settings, snapshot), NIC
    policy = configured_policy(settings)
    if pool is not None:
        node, kind = of_pool(policy, node, pool, wanted, devices)
    generated = spec_of(node, devices, kind=kind, annotations=annotations)
    if hooks:
        socket = settings.hook_socket if settings.state_dir != Settings().state_dir else None
        style = HookStyle(
            path=hook or HOOK,
            socket=socket,
            pool=pool,
            mode=wanted,
            memlock=bytes_,
            hca_handles=hca_handles,
            hca_objects=hca_objects,
        )
        generated = hooked(generated, node, policy, style)
    for sentence in generated.left_out:
        click.echo(printable(sentence), err=True)
    if output == _STDOUT:
        click.echo(encode(generated.spec), nl=False)
        return
    path = write_spec(generated.spec, output, file_name(generated.spec.kind))
    screen = Screen()
    if generated.spec.kind == NIC and (replaced := take_out(output)):
        screen.line(f"{replaced}, which `nri-rdma install podman` made, had devices of the same names and is removed.")
    count = sum(device.name != ALL for device in generated.spec.devices)
    screen.line(f"{path} has {count} of this node's devices:")
    for device in generated.spec.devices:
        screen.raw(f"  {generated.spec.kind.qualified(device.name)}")


def _memlock(text: str | None) -> int | str | None:
    if text is None or text == "unlimited":
        return text
    number = bytes_of(text)
    if number is not None and 0 < number < 2**63:
        return number
    hint = "write unlimited, a number of bytes, or a quantity such as 512Mi"
    raise click.BadParameter(hint, param_hint="--memlock")
