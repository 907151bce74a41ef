"""`nri-rdma snapshot`: this node as a file, which other commands take in the place of a machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from nri_rdma.commands.cli.options import asking_options
from nri_rdma.commands.cli.screen import print_json
from nri_rdma.config.settings import Settings

_STDOUT = Path("-")


@click.command()
@asking_options("sysfs_root", "dev_root", "proc_root", "cgroup_root", "node_ip", "api_server")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    default=_STDOUT,
    show_default=True,
    metavar="FILE",
    help="Where to save it; - is stdout. A file that is there is replaced once the new one is whole.",
)
def snapshot(settings: Settings, output: Path) -> None:
    """Save this node, to look at it elsewhere.

    `inventory`, `explain` and `topology` read the file with --snapshot. It has the names, places and addresses of
    RDMA devices, their netdevs and GPUs, the machine's name and the time, and nothing of pods. Needs no root.

    \b
    Example:
      nri-rdma snapshot -o node.json
      nri-rdma explain pod.yaml --snapshot node.json
    """
    from nri_rdma.commands.cli.document import document_of, name_and_time
    from nri_rdma.commands.cli.node import read_node
    from nri_rdma.host.sysfs.scan import is_own

    node, notes = read_node(settings)
    tree = "" if is_own(settings.sysfs_root) else f", from {settings.sysfs_root}"
    document = document_of(node, (f"Saved on {name_and_time()}{tree}.", *notes))
    if output == _STDOUT:
        print_json(document)
    else:
        _save(json.dumps(document, indent=2) + "\n", output)


def _save(text: str, path: Path) -> None:
    """Whole or not at all, also when the machine stops. A pipe or a device is written to, not replaced."""
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    target = path.resolve()  # of a symbolic link: the file, not the link
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with unfinished.open("x") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        unfinished.unlink(missing_ok=True)
