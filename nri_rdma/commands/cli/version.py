"""The option `nri-rdma --version`."""

from __future__ import annotations

import click

import nri_rdma
from nri_rdma.observe.revision import revision


def version_line(commit: str) -> str:
    """Return the version, with the commit if it is known."""
    line = f"nri-rdma {nri_rdma.__version__}"
    return f"{line} (commit {commit})" if commit else line


def tell_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """Print the version and end the command. A click callback."""
    if asked and not context.resilient_parsing:
        click.echo(version_line(revision()))
        context.exit()
