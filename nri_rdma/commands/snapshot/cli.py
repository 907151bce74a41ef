"""`nri-rdma snapshot`: saves a description of this node in a file. Other commands can read the file instead of a
machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from nri_rdma.commands.common.options import asking_options
from nri_rdma.commands.common.screen import print_json
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
    help="Where to save it; - is stdout. An existing file is replaced when the new one is complete.",
)
def snapshot(settings: Settings, output: Path) -> None:
    """Save this node in a file, to examine it on another machine.

    `inventory`, `explain` and `topology` read the file with --snapshot. It contains the names, places and addresses of
    RDMA devices, their netdevs and GPUs, the machine's name and the time, but nothing about pods. Needs no root.

    \b
    Example:
      nri-rdma snapshot -o node.json
      nri-rdma explain pod.yaml --snapshot node.json
    """
    from nri_rdma.commands.common.local_node import read_node
    from nri_rdma.commands.common.node_file import document_of, name_and_time
    from nri_rdma.host.sysfs.scan import is_own

    node, notes = read_node(settings)
    tree = "" if is_own(settings.sysfs_root) else f", from {settings.sysfs_root}"
    document = document_of(node, (f"Saved on {name_and_time()}{tree}.", *notes))
    if output == _STDOUT:
        print_json(document)
    else:
        _save(json.dumps(document, indent=2) + "\n", output)


def _save(text: str, path: Path) -> None:
    """Write the file so that it is complete or unchanged, even if the machine crashes. A pipe or a device is written to
    directly."""
    if path.exists() and not path.is_file():
        path.write_text(text)
        return
    target = Path(os.path.realpath(path))  # replace the file that a symbolic link points to, not the link
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
