"""`nri-rdma doctor`: checks this machine, and says how to mend what is wrong."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any  # Any: settings as flags, and JSON documents

import click

from nri_rdma.commands.common.options import output_option, setting_flags
from nri_rdma.commands.common.screen import Screen, TextTable, print_json
from nri_rdma.commands.common.unit_environment import daemon_environment
from nri_rdma.config.settings import DEFAULT_CONFIG_FILE, Document, Settings, load
from nri_rdma.errors import SettingError

if TYPE_CHECKING:
    from nri_rdma.commands.doctor.finding import Finding

DOCUMENT_VERSION = 1
EXIT_PROBLEMS = 1


@click.command()
@setting_flags(
    "nri_socket",
    "containerd_socket",
    "annotation_prefix",
    "allow_default_pool",
    "cdi_dirs",
    "memlock",
    "sysfs_root",
    "dev_root",
    "cgroup_root",
    "state_dir",
    "control_socket",
)
@click.option("--strict", is_flag=True, help="End with 1 for warnings, too.")
@click.option(
    "--image-root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The root folder of an unpacked image, to check its libraries for RDMA as well.",
)
@click.option(
    "--stay", is_flag=True, help="Afterwards wait for a signal, so that the pod stays and its log can be read."
)
@output_option
def doctor(config: Path | None, strict: bool, image_root: Path | None, stay: bool, output: str, **flags: Any) -> None:
    """Check this machine, and say how to mend what is wrong.

    Nothing is changed. Without root, some checks are not possible, and the output names them. To identify the runtime,
    doctor registers as a plugin and disconnects at once. The configuration is the file of --config; otherwise the one
    that the runtime sends to an nri-rdma in its plugin folder; otherwise the default file. Ends with 1 if there is a
    problem; warnings do not count.

    \b
    Example:
      nri-rdma doctor
      nri-rdma doctor --strict -o json
      nri-rdma doctor --image-root /tmp/unpacked
    """
    from nri_rdma.commands.common.local_node import notes, read_local_node
    from nri_rdma.commands.common.sent_config import sent_config
    from nri_rdma.commands.doctor.examination import examine
    from nri_rdma.commands.doctor.finding import Result
    from nri_rdma.commands.doctor.machine import Machine

    config = config or sent_config()
    settings, error = _settings(flags, config)

    def read_node() -> Any:
        local = read_local_node(settings)
        return local.node, notes(local, settings)

    findings = examine(
        Machine(
            settings=settings,
            setting_error=error,
            config_file=config or DEFAULT_CONFIG_FILE,
            read_node=read_node,
            image_root=image_root,
        )
    )
    problems, warnings = (
        sum(1 for it in findings if it.result is result) for result in (Result.PROBLEM, Result.WARNING)
    )
    if output == "json":
        print_json(_document(findings, problems, warnings))
    else:
        _show(findings, problems, warnings)
    if stay:
        sys.stdout.flush()
        signal.pause()
    if problems or (strict and warnings):
        click.get_current_context().exit(EXIT_PROBLEMS)


def _settings(flags: dict[str, Any], config: Path | None) -> tuple[Settings, SettingError | None]:
    """Return the settings of a daemon started here, and None. If they are invalid, return settings from flags and
    defaults only, and the error."""
    try:
        return load(flags, daemon_environment(), Document.read(config)).settings, None
    except SettingError as error:
        return load(flags, {}, Document(name="none")).settings, error


def _show(findings: tuple[Finding, ...], problems: int, warnings: int) -> None:
    screen = Screen()
    screen.table(
        TextTable(
            headings=("RESULT", "CHECK", "FOUND"),
            rows=tuple((it.result, it.check, it.found + (f"\nfix: {it.fix}" if it.fix else "")) for it in findings),
        )
    )
    screen.line()
    screen.line(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}. Nothing was changed.", bold=True)


def _document(findings: tuple[Finding, ...], problems: int, warnings: int) -> dict[str, Any]:
    return {
        "version": DOCUMENT_VERSION,
        "checks": [{"check": it.check, "result": str(it.result), "found": it.found, "fix": it.fix} for it in findings],
        "problems": problems,
        "warnings": warnings,
    }


def counted(count: int, word: str) -> str:
    """Return a number with its noun, such as "1 problem" or "2 problems"."""
    return f"{count} {word}{'' if count == 1 else 's'}"
