"""The command `nri-rdma`: its subcommands, exit codes and error messages.

Exit codes: 0 done, 1 refused or a check failed, 2 wrong usage, 3 daemon not reachable, 4 privileges missing. An error
that a user can cause ends the command with one line on stderr that begins with `nri-rdma: CODE:`.

This module and the modules of commands do not import pyroute2, protobuf or opentelemetry before a command runs, so that
`--help` and `--version` answer at once.
"""

from __future__ import annotations

import gc
import io
import os
import sys
from pathlib import Path

import click

from nri_rdma.attach.port import KernelError
from nri_rdma.commands.cdi.cli import cdi
from nri_rdma.commands.claims.cli import claims
from nri_rdma.commands.cli.completion import completion
from nri_rdma.commands.cli.errors import no_thread, told
from nri_rdma.commands.cli.version import tell_version
from nri_rdma.commands.common.options import loaded_options, settings_options
from nri_rdma.commands.config.cli import config
from nri_rdma.commands.doctor.cli import doctor
from nri_rdma.commands.explain.cli import explain
from nri_rdma.commands.install.cli import install, uninstall
from nri_rdma.commands.install.guard_cli import (
    install_containerd,
    install_crio,
    uninstall_containerd,
    uninstall_crio,
)
from nri_rdma.commands.install.systemd_cli import install_systemd, uninstall_systemd
from nri_rdma.commands.inventory.cli import inventory
from nri_rdma.commands.leave.cli import uninstall_kubernetes, uninstall_node
from nri_rdma.commands.preflight.cli import preflight
from nri_rdma.commands.snapshot.cli import snapshot
from nri_rdma.commands.status.cli import status
from nri_rdma.commands.topology.cli import topology
from nri_rdma.commands.trace.cli import trace
from nri_rdma.commands.validate.cli import validate
from nri_rdma.commands.verify.cli import verify
from nri_rdma.config.settings import Loaded
from nri_rdma.doors.nri.identity import SOCKET_VARIABLE
from nri_rdma.errors import ErrorCode, NriRdmaError, SettingError

__all__ = ["commands", "main", "settings_options"]

EXIT_REFUSED, EXIT_USAGE, EXIT_NO_DAEMON, EXIT_PRIVILEGE, EXIT_INTERRUPTED = 1, 2, 3, 4, 130


def main() -> None:
    """Run the command line and end the process with its exit code."""
    _open_closed_streams()
    _print_whatever_there_is()
    try:
        code: object = commands(standalone_mode=False, prog_name="nri-rdma")
        sys.stdout.flush()
    except click.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python's last flush would print an error
        sys.exit(EXIT_REFUSED)
    except (NriRdmaError, KernelError, click.ClickException, OSError) as error:
        ours = _usage(error) if isinstance(error, click.ClickException) else told(error)
        click.echo(str(ours), err=True)
        sys.exit(_exit_code(ours))
    sys.exit(code if isinstance(code, int) else 0)


@click.group(
    invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=tell_version, help="Print the version."
)
@click.pass_context
def commands(context: click.Context) -> int | None:
    """Give containers their own RDMA hardware.

    \b
    Example:
      nri-rdma doctor                 what this machine lacks
      nri-rdma inventory              what this node has
      nri-rdma topology               which devices and GPUs are near each other
      nri-rdma explain pod.yaml       what a pod would get here, and why
      nri-rdma validate pod.yaml      what is wrong in a file for nri-rdma
      nri-rdma verify                 whether RDMA works in this container
      nri-rdma run --dry-run          what the daemon would do for the pods here
      nri-rdma run                    the daemon
    """
    if context.invoked_subcommand is not None:
        return None
    if SOCKET_VARIABLE in os.environ:  # the runtime started us
        from nri_rdma.commands.cli.launched_daemon import serve

        return serve(os.environ, sys.argv[0])
    click.echo(context.get_help())
    return None


@commands.command()
@loaded_options(is_start=lambda arguments: not arguments["dry_run"])
@click.option("--dry-run", is_flag=True, help="Only report what would be done for each pod.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="With --dry-run: lines for people, or a JSON object per line for programs.",
)
def run(loaded: Loaded, dry_run: bool, output: str) -> None:
    """Run the daemon.

    The daemon connects to the runtime over NRI and serves until SIGTERM. Pods keep their devices when it ends. On
    SIGHUP it reads the configuration file again. A setting that cannot be used does not end it: `nri-rdma status` says
    which one and what follows. If that setting decides which pod gets what, pods that ask for devices are refused.

    The runtime can start the daemon instead: make 90-nri-rdma in its plugin folder a link to this program. The daemon
    then gets no arguments; its settings are in /etc/nri/conf.d/90-nri-rdma.conf, written like the configuration file.

    With --dry-run, the command prints what the daemon would do for each running or new pod and container. It changes
    nothing and refuses no pod, and a daemon may run at the same time.

    \b
    Example:
      nri-rdma run --allow-default-pool
      nri-rdma run --dry-run -o json
      mkdir -p /opt/nri/plugins
      ln -s /opt/nri-rdma/bin/nri-rdma /opt/nri/plugins/90-nri-rdma
    """
    if output != "text" and not dry_run:
        raise click.UsageError("-o is for --dry-run")
    from nri_rdma.observe.logs import set_up_logging

    settings = loaded.settings
    if dry_run:
        from nri_rdma.commands.dryrun.cli import dry_run as report_only

        set_up_logging(settings.log_level, settings.log_format)  # not log_file: a daemon may write there
        report_only(settings, output)
        return
    log_error = set_up_logging(settings.log_level, settings.log_format, settings.log_file)
    gc.disable()  # while the daemon is created: nothing of it is garbage
    from nri_rdma.config.start import start_troubles
    from nri_rdma.daemon.daemon import Daemon
    from nri_rdma.daemon.priority import prefer
    from nri_rdma.daemon.shortcomings import warn_of_variables

    prefer(settings.nice)
    warn_of_variables(os.environ)
    troubles = start_troubles(loaded, log_error)
    try:
        Daemon(settings, reread=loaded.again, troubles=troubles, closed=loaded.closed).run()
    except RuntimeError as error:
        raise no_thread(error) from error


for command in (
    doctor,
    preflight,
    cdi,
    claims,
    inventory,
    topology,
    explain,
    validate,
    verify,
    snapshot,
    status,
    trace,
    config,
    completion,
    install,
    uninstall,
):
    commands.add_command(command)
for command in (install_containerd, install_crio, install_systemd):
    install.add_command(command)
for command in (uninstall_containerd, uninstall_crio, uninstall_systemd, uninstall_node, uninstall_kubernetes):
    uninstall.add_command(command)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller has closed (`>&-`) on /dev/null. Python has None in their place."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - open until the end


def _print_whatever_there_is() -> None:
    """Escape characters that the terminal cannot show, so that printing never fails. Names come from hardware and
    pods."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _usage(error: click.ClickException) -> SettingError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    what, _, meant = " ".join(error.format_message().split()).partition(" Did you mean ")
    near = f"write {meant.rstrip('?')}, or " if meant else ""
    hint = f"{near}see {context.command_path if context else 'nri-rdma'} --help"
    return SettingError(ErrorCode.SETTING, what.rstrip("."), hint=hint)


def _exit_code(error: NriRdmaError) -> int:
    if isinstance(error, SettingError):
        return EXIT_USAGE
    codes = {
        ErrorCode.DAEMON_ABSENT: EXIT_NO_DAEMON,
        ErrorCode.DAEMON_LATE: EXIT_NO_DAEMON,
        ErrorCode.PRIVILEGE: EXIT_PRIVILEGE,
    }
    return codes.get(error.code, EXIT_REFUSED)
