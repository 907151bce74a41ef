"""Runs containerd's command to learn its release and its effective configuration, and finds running containerds in
/proc."""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any  # Any: containerd's configuration

from nri_rdma.errors import ErrorCode, NriRdmaError
from nri_rdma.host.engine_command import run

PROGRAM = "containerd"
DEFAULT_CONFIG = Path("/etc/containerd/config.toml")
CONFIG_FLAGS = ("--config", "-config", "-c", "--c")
"""All spellings of containerd's flag for its configuration file, which Go's package `flag` accepts."""
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerdProgram:
    """An installed containerd: its program, its configuration file, and the systemd unit that it runs in."""

    program: str = PROGRAM
    config: Path = DEFAULT_CONFIG
    unit: str = PROGRAM

    def version(self) -> tuple[int, int]:
        """Return the major and minor number of containerd's version. Raises NriRdmaError if the program fails or prints
        no version."""
        text = run(self.program, "--version", timeout_s=_TIMEOUT_S)
        found = re.search(r"\sv?(\d+)\.(\d+)\.", text)
        if found is None:
            what = f"this is not a version of containerd: {text.strip()!r}"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=f"{self.program} --version", hint="see what it is")
        return int(found[1]), int(found[2])

    def configuration(self) -> Mapping[str, Any]:
        """Return the effective configuration that containerd would have after its next start. Raises NriRdmaError if
        the program fails or prints invalid TOML."""
        text = run(self.program, "--config", str(self.config), "config", "dump", timeout_s=_TIMEOUT_S)
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            what, where = f"containerd printed invalid TOML: {error}", f"{self.program} config dump"
            raise NriRdmaError(ErrorCode.INSTALL, what, where=where, hint="see what it prints") from error

    def oci_spec(self) -> str:
        """Return containerd's default OCI configuration, which its tool `ctr` prints. Raises NriRdmaError if that
        fails."""
        beside = Path(self.program).with_name("ctr")
        return run(str(beside) if beside.is_file() else "ctr", "oci", "spec", timeout_s=_TIMEOUT_S)


def find_containerd(pid: int, config: Path | None, proc: Path = Path("/proc")) -> ContainerdProgram:
    """Return the containerd that runs as process `pid`, or the one in PATH if `pid` is 0. If `config` is not None, it
    replaces the path of that containerd's configuration file.

    Raises NriRdmaError if the process cannot be read.
    """
    found = _running(pid, proc) if pid else ContainerdProgram(program=shutil.which(PROGRAM) or PROGRAM)
    return replace(found, config=(config or found.config).resolve())


def running_configs(proc: Path = Path("/proc")) -> Iterator[tuple[int, Path]]:
    """Yield the pid and the configuration file of each containerd that runs on this host. One that ends meanwhile is
    skipped."""
    for pid in processes_of(PROGRAM, proc):
        with suppress(NriRdmaError):  # it has ended
            yield pid, _running(pid, proc).config.resolve()


def processes_of(program: str, proc: Path = Path("/proc")) -> Iterator[int]:
    """Yield the pids of the processes that run a program with this name."""
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if (folder / "comm").read_text() == f"{program}\n":
                yield int(folder.name)


def config_in(arguments: Sequence[str]) -> Path:
    """Return the configuration file that a containerd command line names, or the default one."""
    for number, argument in enumerate(arguments):
        flag, equals, value = argument.partition("=")
        if flag in CONFIG_FLAGS:
            return Path(value if equals else next(iter(arguments[number + 1 :]), ""))
    return DEFAULT_CONFIG


def _running(pid: int, proc: Path) -> ContainerdProgram:
    try:
        program = (proc / str(pid) / "exe").readlink()
        arguments = (proc / str(pid) / "cmdline").read_bytes().decode(errors="surrogateescape").split("\0")
        groups = (proc / str(pid) / "cgroup").read_text()
    except OSError as error:
        what, hint = f"the process of containerd, {pid}, cannot be read: {error.strerror}", "run this as root"
        raise NriRdmaError(ErrorCode.INSTALL, what, hint=hint) from error
    unit = re.search(r"/([^/\n]+)\.service$", groups, re.MULTILINE)
    return ContainerdProgram(
        program=str(program), config=config_in(arguments), unit=unit[1] if unit is not None else PROGRAM
    )
