"""The command `nri-rdma`: its sub-commands, its exit codes, its way to tell errors.

Exit codes: 0 done, 1 refused or check failed, 2 usage, 3 daemon not reachable, 4 lacks privilege. What a user can cause
ends as one line on stderr that begins with `nri-rdma: CODE:`.

Nothing here or in the modules of the commands imports rich, pyroute2, protobuf or opentelemetry before a command runs:
`--help` and `--version` answer at once.
"""

from __future__ import annotations

import errno
import gc
import io
import os
import sys

import click

from nri_rdma import __version__
from nri_rdma.attach.port import KernelError
from nri_rdma.cli.config import config
from nri_rdma.cli.explain import explain
from nri_rdma.cli.inventory import inventory
from nri_rdma.cli.options import loaded_options, settings_options
from nri_rdma.cli.snapshot import snapshot
from nri_rdma.cli.status import status
from nri_rdma.cli.trace import trace
from nri_rdma.config import Loaded
from nri_rdma.errors import ErrorCode, InventoryError, NriRdmaError, SettingError

__all__ = ["commands", "main", "settings_options"]

EXIT_REFUSED, EXIT_USAGE, EXIT_NO_DAEMON, EXIT_PRIVILEGE, EXIT_INTERRUPTED = 1, 2, 3, 4, 130
_NO_PRIVILEGE = (errno.EPERM, errno.EACCES)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _print_whatever_there_is()
    try:
        code: object = commands(standalone_mode=False, prog_name="nri-rdma")
        sys.stdout.flush()
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python flushes once more, and complains
        sys.exit(EXIT_REFUSED)
    except (NriRdmaError, KernelError, click.ClickException, OSError) as error:
        told = _told(error)
        click.echo(str(told), err=True)
        sys.exit(_exit_code(told))
    sys.exit(code if isinstance(code, int) else 0)


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.version_option(__version__, prog_name="nri-rdma", message="%(prog)s %(version)s")
@click.pass_context
def commands(context: click.Context) -> None:
    """Give containers their own RDMA hardware.

    \b
    Example:
      nri-rdma inventory              what this node has
      nri-rdma explain pod.yaml       what a pod would get here, and why
      nri-rdma run                    the daemon
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@commands.command()
@loaded_options()
def run(loaded: Loaded) -> None:
    """Run the daemon.

    It connects to the runtime over NRI and serves until SIGTERM; devices that pods have then stay theirs. SIGHUP has
    the configuration file read again.

    \b
    Example:
      nri-rdma run --allow-default-pool
    """
    from nri_rdma.observe.logs import set_up_logging

    settings = loaded.settings
    set_up_logging(settings.log_level, settings.log_format)
    gc.disable()  # until the daemon is made: it is no garbage
    from nri_rdma.daemon import Daemon

    Daemon(settings, reread=loaded.again).run()


for command in (inventory, explain, snapshot, status, trace, config):
    commands.add_command(command)


def _print_whatever_there_is() -> None:
    """Names come from hardware and pods: one that the terminal cannot show must not end a command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _told(error: NriRdmaError | KernelError | click.ClickException | OSError) -> NriRdmaError:
    """The error in our words."""
    if isinstance(error, NriRdmaError):
        return error
    if isinstance(error, click.ClickException):
        return _usage(error)
    if error.errno in _NO_PRIVILEGE:
        return NriRdmaError(ErrorCode.PRIVILEGE, _words(error), hint="run it as root")
    if isinstance(error, KernelError):
        return InventoryError(ErrorCode.INVENTORY, str(error), hint="see which kernel and which host this is")
    return SettingError(ErrorCode.SETTING, _words(error), hint="see --help for the paths")


def _words(error: KernelError | OSError) -> str:
    """What the system said, and of which path."""
    if isinstance(error, KernelError):
        return str(error)
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")


def _usage(error: click.ClickException) -> SettingError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    what = " ".join(error.format_message().split()).rstrip(".")
    return SettingError(ErrorCode.SETTING, what, hint=f"{context.command_path if context else 'nri-rdma'} --help")


def _exit_code(error: NriRdmaError) -> int:
    if isinstance(error, SettingError):
        return EXIT_USAGE
    return {ErrorCode.DAEMON_ABSENT: EXIT_NO_DAEMON, ErrorCode.PRIVILEGE: EXIT_PRIVILEGE}.get(error.code, EXIT_REFUSED)
