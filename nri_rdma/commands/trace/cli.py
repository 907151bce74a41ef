"""`nri-rdma trace`: shows what the daemon did, when, and how long each step took."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: a JSON document

import click

from nri_rdma.commands.common.options import asking_options, output_option
from nri_rdma.commands.common.screen import Screen, can_draw, print_json
from nri_rdma.config.settings import Settings

if TYPE_CHECKING:
    from nri_rdma.commands.trace.waterfall import Block

DEFAULT_LAST = 20
EXIT_NOTHING = 1


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
@click.option("--errors", is_flag=True, help="Only events with a failed step.")
@asking_options("state_dir", "control_socket")
@output_option
@click.pass_context
def trace(context: click.Context, pod: str, last: int, errors: bool, settings: Settings, output: str) -> None:
    """Show what the daemon did for a pod, step by step.

    POD is namespace/name, name, UID or sandbox id, or the name of a podman or Docker container; without POD, all pods
    are shown. Each event of the runtime is one waterfall, oldest first. The daemon remembers recent events only; the
    last line says since when. Ends with 1 if the daemon remembers nothing about POD.

    FILE is the output of -o json, in a file whose name ends with .json, or - for stdin. It can be shown on any
    machine, because no daemon is asked.

    \b
    Example:
      nri-rdma trace default/train-0
      nri-rdma trace --last 1
      nri-rdma trace --errors
      nri-rdma trace -o json > trace.json; nri-rdma trace trace.json
    """
    from nri_rdma.commands.trace.waterfall import make_blocks, read_spans

    is_file = pod == "-" or pod.endswith(".json")
    document = _saved(Path(pod)) if is_file else _asked(settings, pod)
    found = make_blocks(read_spans(document))
    blocks = tuple(block for block in found if block.has_failed or not errors)[-last:]
    if output == "json":
        kept = {row.span.span_id for block in blocks for row in block.rows}
        print_json({**document, "spans": [span for span in document["spans"] if span["span_id"] in kept]})
    else:
        if blocks:
            _show(blocks)
        else:
            _say_nothing(pod, is_file=is_file, is_known=bool(found))
        _show_ring(document)
    if pod and not is_file and not found:
        context.exit(EXIT_NOTHING)


def _saved(path: Path) -> dict[str, Any]:
    from nri_rdma.commands.trace.tracefile import read_trace

    return read_trace(path)


def _asked(settings: Settings, pod: str) -> dict[str, Any]:
    from nri_rdma.commands.status.container_pods import id_of
    from nri_rdma.doors.control.daemon_client import ask_trace

    document = ask_trace(settings.control_path, pod)
    if pod and not document["spans"] and (container := id_of(pod)):
        return ask_trace(settings.control_path, container)
    return document


def _say_nothing(pod: str, *, is_file: bool, is_known: bool) -> None:
    """Print that no event can be shown. `is_file`: the trace is from a file. `is_known`: events exist, but none of them
    failed."""
    of = f" of a pod {pod}" if pod else ""
    if is_known:
        Screen().line(f"Nothing{f' in {pod}' if is_file else of} failed.")
        return
    who = f"There is nothing in {pod}" if is_file else f"The daemon remembers nothing{of}"
    Screen().line(f"{who}. A pod that asks for no RDMA device leaves no trace.")


def _show_ring(document: dict[str, Any]) -> None:
    """Print from which time on the daemon remembers events."""
    ring = document.get("ring")
    if not isinstance(ring, dict) or not isinstance(since := ring.get("since"), int | float):
        return  # an older daemon does not have this field, and a file may be of another program
    if not ring.get("capacity"):
        return  # the setting `tracing` is off, so the daemon remembers no steps
    with contextlib.suppress(OverflowError, ValueError, OSError):  # a file may contain an impossible time
        when = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        screen = Screen()
        screen.line()
        screen.line(f"The daemon remembers what it did since {when}, at most its last {ring.get('capacity')} steps.")
        if isinstance(started := ring.get("started"), int | float) and started - since > 1:
            started_at = datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
            screen.line(f"It started at {started_at}; older steps are those of a daemon before it.")


def _show(blocks: tuple[Block, ...]) -> None:
    from nri_rdma.commands.trace.waterfall import ASCII, UNICODE, draw

    screen = Screen()
    pen = UNICODE if can_draw("".join((UNICODE.pieces, UNICODE.branch, UNICODE.corner, UNICODE.pipe))) else ASCII
    for number, block in enumerate(blocks):
        if number:
            screen.line()
        for line in draw(block, screen.width, pen):
            screen.raw(line.text, bold=line.is_header, colour="red" if line.is_error else None)
