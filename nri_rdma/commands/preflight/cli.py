"""`nri-rdma preflight`: one table with doctor's findings on all nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from nri_rdma.commands.common.screen import Screen, TextTable
from nri_rdma.commands.doctor.cli import EXIT_PROBLEMS, counted

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.finding import Finding

_NAMED = 3
"""The maximum number of nodes with one finding that are listed by name."""
_HINT = "see that the API server runs, and install again; this command runs in the chart's Job only (preflight: true)"


@click.command()
@click.option("--namespace", required=True, metavar="NAME", help="Where the DaemonSets are.")
@click.option("--without", multiple=True, metavar="CHECK", help="Ignore this check of doctor.")
@click.option("--timeout", default=180.0, show_default=True, metavar="SECONDS", help="For all nodes together.")
def preflight(namespace: str, without: tuple[str, ...], timeout: float) -> None:
    """Print doctor's warnings and problems on all nodes of a cluster, before the chart is installed there.

    With preflight=true, the chart runs this command in a Job. It ends with 1 if a node has a problem or does not
    answer. It must run in a pod whose service account may read the logs of doctor's pods.

    \b
    Example:
      nri-rdma preflight --namespace nri-rdma --without daemon
    """
    from nri_rdma.commands.common.cluster import api_server
    from nri_rdma.commands.preflight.nodes import examine_nodes

    with api_server(None, _HINT) as api:
        found = examine_nodes(api, namespace, without, timeout)
    if show(found):
        click.get_current_context().exit(EXIT_PROBLEMS)


def show(found: Mapping[str, Iterable[Finding]]) -> int:
    """Print the warnings and problems with their nodes. Returns the number of problems."""
    from nri_rdma.commands.doctor.finding import Result
    from nri_rdma.commands.preflight.nodes import CLUSTER, rows

    lines, screen = rows(found), Screen()
    nodes = counted(len(found.keys() - {CLUSTER}), "node")
    if not lines:
        screen.line(f"{nodes}: all ok")
        return 0
    texts = tuple(
        (_listed(names), it.result, it.check, it.found + (f"\nfix: {it.fix}" if it.fix else "")) for it, names in lines
    )
    screen.table(TextTable(headings=("NODE", "RESULT", "CHECK", "FOUND"), rows=texts))
    screen.line()
    problems, warnings = (sum(it.result is result for it, _ in lines) for result in (Result.PROBLEM, Result.WARNING))
    ends = " Nothing was installed or changed." if problems else ""
    screen.line(f"{nodes}: {counted(problems, 'problem')}, {counted(warnings, 'warning')}.{ends}", bold=True)
    return problems


def _listed(nodes: list[str]) -> str:
    more = len(nodes) - _NAMED
    return ", ".join(nodes[:_NAMED]) + (f" and {more} more" if more > 0 else "")
