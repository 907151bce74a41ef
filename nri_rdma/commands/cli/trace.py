"""`nri-rdma trace`: what the daemon did, when, and how long each step took."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: a JSON document

import click

from nri_rdma.commands.cli.options import asking_options, output_option
from nri_rdma.commands.cli.screen import Screen, can_draw, print_json
from nri_rdma.config.settings import Settings

if TYPE_CHECKING:
    from nri_rdma.commands.cli.waterfall import Block

DEFAULT_LAST = 20


@click.command()
@click.argument("pod", default="", metavar="[POD|FILE]")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=DEFAULT_LAST,
    show_default=True,
    metavar="N",
    help="At most this many events, the newest ones.",
)
@asking_options("state_dir", "control_socket")
@output_option
def trace(pod: str, last: int, settings: Settings, output: str) -> None:
    """Show what the daemon did for a pod, step by step.

    POD is namespace/name, name, UID or sandbox id; without it, all pods. One waterfall per event of the runtime, oldest
    first; the daemon remembers recent ones only. FILE is what -o json printed, under a name that ends with .json, or -
    for stdin: it is shown on any machine, and no daemon is asked.

    \b
    Example:
      nri-rdma trace default/train-0
      nri-rdma trace --last 1
      nri-rdma trace -o json > trace.json; nri-rdma trace trace.json
    """
    from nri_rdma.commands.cli.waterfall import make_blocks, read_spans

    is_file = pod == "-" or pod.endswith(".json")
    document = _saved(Path(pod)) if is_file else _asked(settings, pod)
    blocks = make_blocks(read_spans(document))[-last:]
    if output == "json":
        kept = {row.span.span_id for block in blocks for row in block.rows}
        print_json({**document, "spans": [span for span in document["spans"] if span["span_id"] in kept]})
        return
    if not blocks:
        of = f" of a pod {pod}" if pod else ""
        who = f"There is nothing in {pod}" if is_file else f"The daemon remembers nothing{of}"
        Screen().line(f"{who}. A pod that asks for no RDMA device leaves no trace.")
        return
    _show(blocks)


def _saved(path: Path) -> dict[str, Any]:
    from nri_rdma.commands.cli.tracefile import read_trace

    return read_trace(path)


def _asked(settings: Settings, pod: str) -> dict[str, Any]:
    from nri_rdma.doors.control.client import ask_trace

    return ask_trace(settings.control_path, pod)


def _show(blocks: tuple[Block, ...]) -> None:
    from nri_rdma.commands.cli.waterfall import ASCII, UNICODE, draw

    screen = Screen()
    pen = UNICODE if can_draw("".join((UNICODE.pieces, UNICODE.branch, UNICODE.corner, UNICODE.pipe))) else ASCII
    for number, block in enumerate(blocks):
        if number:
            screen.line()
        for line in draw(block, screen.width, pen):
            screen.raw(line.text, bold=line.is_header, colour="red" if line.is_error else None)
