"""The command `nri-rdma`: its sub-commands, its exit codes, its way to tell errors.

Exit codes: 0 done, 1 refused or check failed, 2 usage, 3 daemon not reachable, 4 lacks privilege.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any  # Any: click's values

import click

from nri_rdma import __version__
from nri_rdma.config import ENVIRONMENT_PREFIX, Settings, load_settings
from nri_rdma.errors import ErrorCode, NriRdmaError, SettingError

EXIT_REFUSED, EXIT_USAGE, EXIT_NO_DAEMON, EXIT_PRIVILEGE = 1, 2, 3, 4


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        commands(standalone_mode=False, prog_name="nri-rdma")
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(EXIT_USAGE)
    except click.Abort:
        sys.exit(130)
    except NriRdmaError as error:
        click.echo(str(error), err=True)
        sys.exit(_exit_code(error))
    except PermissionError as error:
        click.echo(f"nri-rdma: {ErrorCode.PRIVILEGE}: {error}. Next: run it as root.", err=True)
        sys.exit(EXIT_PRIVILEGE)
    sys.exit(0)


def _exit_code(error: NriRdmaError) -> int:
    if isinstance(error, SettingError):
        return EXIT_USAGE
    return {ErrorCode.DAEMON_ABSENT: EXIT_NO_DAEMON, ErrorCode.PRIVILEGE: EXIT_PRIVILEGE}.get(error.code, EXIT_REFUSED)


def settings_options(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The flags of these settings (all without names), and --config; the command gets a Settings as `settings`."""
    chosen = [item for item in fields(Settings) if not names or item.name in names]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def with_settings(config: Path | None, **arguments: Any) -> Any:
            flags = {item.name: arguments.pop(item.name) for item in chosen}
            return command(settings=load_settings(flags, os.environ, config), **arguments)

        with_settings.__doc__ = command.__doc__
        with_settings.__name__ = command.__name__
        decorated = with_settings
        decorated.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined] # click keeps its parameters there
        for item in reversed(chosen):
            decorated = _flag(item)(decorated)
        path = click.Path(dir_okay=False, path_type=Path)
        return click.option("--config", type=path, metavar="FILE", help="Configuration file (TOML).")(decorated)

    return decorate


def _flag(item: Field[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    name, text = (
        "--" + item.name.replace("_", "-"),
        f"{item.metadata['help']} [{ENVIRONMENT_PREFIX}{item.name.upper()}]",
    )
    if isinstance(item.default, bool):
        return click.option(name, item.name, is_flag=True, default=None, help=text)
    return click.option(name, item.name, default=None, metavar=item.metadata["metavar"], help=text)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="nri-rdma")
def commands() -> None:
    """Give containers their own RDMA hardware.

    Example: nri-rdma inventory
    """


@commands.command()
@settings_options()
def run(settings: Settings) -> None:
    """Run the daemon: connect to the runtime over NRI and serve until SIGTERM.

    Example: nri-rdma run --allow-default-pool
    """
    from nri_rdma.observe.logs import set_up_logging

    set_up_logging(settings.log_level, settings.log_format)
    from nri_rdma.daemon import Daemon

    Daemon(settings).run()
