"""`nri-rdma completion`: prints a script with which a shell completes commands and options."""

from __future__ import annotations

import click

VARIABLE = "_NRI_RDMA_COMPLETE"
"""The environment variable by which the printed script asks this program for completions. click reads it."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands and options in a shell.

    \b
    Example:
      nri-rdma completion bash > /etc/bash_completion.d/nri-rdma
      nri-rdma completion zsh > "${fpath[1]}/_nri-rdma"
      nri-rdma completion fish > ~/.config/fish/completions/nri-rdma.fish
    """
    from click.shell_completion import get_completion_class

    program = context.find_root()
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"this release of click has no completion for {shell}")
    click.echo(kind(program.command, {}, program.info_name or "nri-rdma", VARIABLE).source())
