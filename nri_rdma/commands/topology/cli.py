"""`nri-rdma topology`: shows how near this node's RDMA devices are to its GPUs, and which pods have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: JSON documents

import click

from nri_rdma.commands.common.options import asking_options, snapshot_option
from nri_rdma.commands.common.screen import Screen, TextTable, print_json
from nri_rdma.config.settings import Settings

if TYPE_CHECKING:
    from nri_rdma.commands.picture.view import View
    from nri_rdma.decide.placement import Taken
    from nri_rdma.model.device import Node

_GAP = 2
_CLASS_WIDTH = len("NODE")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """A node, and the pods that hold its devices (`taken`; None if nobody knows them). `sentences` say from where and
    when these facts are."""

    node: Node
    taken: Taken | None
    sentences: tuple[str, ...]


@click.command()
@asking_options(
    "sysfs_root",
    "dev_root",
    "proc_root",
    "cgroup_root",
    "node_ip",
    "api_server",
    "state_dir",
    "control_socket",
)
@snapshot_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "svg"]),
    default="table",
    show_default=True,
    help="A table for people, a JSON document for programs, or a picture.",
)
def topology(settings: Settings, snapshot: Path | None, output: str) -> None:
    """Show how near RDMA devices and GPUs are to each other, and which pods have them.

    The distance classes are those of `nvidia-smi topo -m`. If a daemon runs, it says what pods hold. All devices of one
    physical function, including its virtual functions, have the same distances, so the table and the picture show them
    as one. Needs no root.

    \b
    Example:
      nri-rdma topology
      nri-rdma topology -o svg > node.svg
      nri-rdma topology --snapshot node.json -o json
    """
    from nri_rdma.commands.picture.view import view_of

    source = _gather(settings, snapshot)
    view = view_of(source.node, source.taken or {}, holders_are_known=source.taken is not None)
    match output:
        case "json":
            print_json(_document(source, view))
        case "svg":
            print(_picture(view, source.sentences), end="")
        case _:
            _show(Screen(), view, source.sentences)


# Where it is from


def _gather(settings: Settings, snapshot: Path | None) -> _Source:
    """Return the node as the running daemon knows it. This command reads the node itself if no daemon answers, if the
    daemon reads another sysfs tree, or if `snapshot` is given."""
    from nri_rdma.doors.control.daemon_client import ask_status
    from nri_rdma.errors import NotReadyError

    if snapshot is not None:
        return _from_node(settings, "What pods hold is not in a snapshot.", snapshot)
    try:
        document = ask_status(settings.control_path)
    except NotReadyError as error:
        return _from_node(settings, f"What pods hold is not known: {error.what} ({settings.control_path}).")
    told = Path(str(document.get("sysfs_root")))
    default = next(item.default for item in fields(Settings) if item.name == "sysfs_root")
    if settings.sysfs_root not in {told, default}:
        sentence = f"The daemon reads its hardware from {told}: what pods hold there is not shown."
        return _from_node(settings, sentence)
    return _from_daemon(document)


def _from_node(settings: Settings, sentence: str, snapshot: Path | None = None) -> _Source:
    from nri_rdma.commands.common.local_node import read_node

    node, notes = read_node(settings, snapshot)
    return _Source(node=node, taken=None, sentences=(*notes, *_whose(settings, snapshot), sentence))


def _whose(settings: Settings, snapshot: Path | None) -> Iterator[str]:
    """Yield a sentence with the machine's name and the present time, so that the pictures of several nodes can be told
    apart.

    Yields nothing for a snapshot, whose notes already have a name and a time, and for a sysfs tree that is not this
    machine's.
    """
    from nri_rdma.commands.common.node_file import name_and_time
    from nri_rdma.host.sysfs.scan import is_own

    if snapshot is None and is_own(settings.sysfs_root):
        yield f"Node {name_and_time()}."


def _from_daemon(document: dict[str, Any]) -> _Source:
    from nri_rdma.commands.common.node_file import name_and_time
    from nri_rdma.commands.status.device_holders import taken_from
    from nri_rdma.commands.status.document_check import look_through
    from nri_rdma.doors.control.node_document import node_from

    look_through(document)
    sentences = (f"Node {name_and_time()}.", f"As the daemon (pid {document['daemon']['pid']}) knows it now.")
    return _Source(node=node_from(document), taken=taken_from(document), sentences=sentences)


# For people


def _show(screen: Screen, view: View, sentences: tuple[str, ...]) -> None:
    from nri_rdma.commands.picture.matrix import SELF
    from nri_rdma.decide.topology import Distance

    if not view.gpus and not view.adapters:
        screen.line("This machine has neither RDMA devices nor GPUs.")
    else:
        for block in _matrix(view, screen.width):
            screen.table(block)
            screen.line()
        screen.table(_holders(view))
        screen.line()
        legend = ((SELF, "itself"), *(tuple(it.words.split(", ", 1)) for it in Distance))
        screen.facts((name, words) for name, words in legend)
    screen.line()
    for sentence in sentences:
        screen.line(sentence)


def _matrix(view: View, width: int) -> Iterator[TextTable]:
    """Yield the matrix in blocks, each with as many columns as fit on the screen."""
    from nri_rdma.commands.picture.matrix import matrix_of

    names = _names(view)
    rows = matrix_of([*view.gpus, *(adapter.head for adapter in view.adapters)])
    room = width - max(map(len, names))
    first = 0
    while first < len(names):
        last = first + _fitting(names[first:], room)
        yield TextTable(
            headings=("", *names[first:last]),
            rows=tuple((name, *row[first:last]) for name, row in zip(names, rows, strict=True)),
        )
        first = last


def _fitting(names: Sequence[str], room: int) -> int:
    """Return how many of these columns fit into the width `room`. The result is at least one."""
    for count, name in enumerate(names):
        room -= _GAP + max(_CLASS_WIDTH, len(name))
        if room < 0:
            return max(1, count)
    return len(names)


def _names(view: View) -> tuple[str, ...]:
    from nri_rdma.commands.picture.view import gpu_name

    return (*map(gpu_name, range(len(view.gpus))), *(adapter.head.name for adapter in view.adapters))


def _holders(view: View) -> TextTable:
    """Return a table with a row for each GPU and RDMA device. The device that represents an adapter in the matrix comes
    first."""
    from nri_rdma.commands.picture.view import gpu_name
    from nri_rdma.commands.picture.words import device_words

    rows = [
        (gpu_name(number), str(gpu.pci), gpu.pci_root or "-", _numa(gpu.numa_node), "-", _owners(view, number))
        for number, gpu in enumerate(view.gpus)
    ]
    for adapter in view.adapters:
        rail = "-" if adapter.rail is None else str(adapter.rail)
        for device in adapter.devices:
            name = device.name if device is adapter.head else f"  {device.name}"
            numa = _numa(device.numa_node)
            rows.append((name, str(device.pci or "-"), device.pci_root or "-", numa, rail, device_words(view, device)))
    return TextTable(headings=("DEVICE", "PCI", "ROOT", "NUMA", "RAIL", "HELD BY"), rows=tuple(rows))


def _owners(view: View, number: int) -> str:
    return ", ".join(view.owners.get(view.gpus[number].pci, ())) or "-"


def _numa(number: int | None) -> str:
    return "-" if number is None else str(number)


def _picture(view: View, sentences: tuple[str, ...]) -> str:
    from nri_rdma.commands.picture.positions import drawing_of
    from nri_rdma.commands.picture.svg import svg_of

    return svg_of(drawing_of(view, sentences))


# For programs


def _document(source: _Source, view: View) -> dict[str, Any]:
    """Return the document of `inventory -o json` with additions: names of GPUs, holders in the form of `status -o
    json`, rails, and the matrix of distances."""
    from nri_rdma.commands.common.node_file import document_of
    from nri_rdma.commands.picture.matrix import matrix_of
    from nri_rdma.commands.picture.view import gpu_name
    from nri_rdma.commands.status.device_holders import holder_document

    node = source.node
    document = document_of(node, source.sentences)
    for number, told in enumerate(document["gpus"]):
        told |= {"name": gpu_name(number), "pods": list(view.owners.get(node.gpus[number].pci, ()))}
    for told, device in zip(document["devices"], node.devices, strict=True):
        told["holders"] = [holder_document(holding) for holding in view.holdings.get(device.id, ())]
    names = [*(told["name"] for told in document["gpus"]), *(device.name for device in node.devices)]
    rails = {device.name: adapter.rail for adapter in view.adapters for device in adapter.devices}
    return {
        **document,
        "rails": rails,
        "matrix": {"names": names, "classes": [list(row) for row in matrix_of([*node.gpus, *node.devices])]},
    }
