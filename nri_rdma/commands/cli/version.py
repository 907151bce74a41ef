"""The line of `nri-rdma --version`: an image has a file that says which commit it was made of."""

from __future__ import annotations

from pathlib import Path

import click

import nri_rdma

REVISION = "REVISION"
"""The file in the package's folder; `python -m deploy.image` writes it."""


def version_line(folder: Path) -> str:
    """Return the version, and the commit where the package's folder has it."""
    line = f"nri-rdma {nri_rdma.__version__}"
    try:
        commit = (folder / REVISION).read_text().strip()
    except FileNotFoundError:  # not an image
        return line
    return f"{line} (commit {commit})"


def tell_version(context: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    """Print the line and end, as an option's callback."""
    if asked and not context.resilient_parsing:
        click.echo(version_line(Path(nri_rdma.__file__).parent))
        context.exit()
