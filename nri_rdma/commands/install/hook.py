"""The hook programs for runtimes and container engines. Each is a program and its Python module, in a folder that no
package upgrade touches; all engines use one copy.

Law: the program never exists without its module, which is written first and removed last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from nri_rdma.commands.cdi.hooked_devices import HOOK
from nri_rdma.commands.common.changes import OwnFile
from nri_rdma.config.settings import Settings
from nri_rdma.errors import ErrorCode, NriRdmaError

PROGRAM_MODE = 0o755
_MODULE_MODE = 0o644
_HELP_S = 10.0
OWN_FIX = "have root own that folder and nobody else write it: chown root, chmod go-w"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSettings:
    """The settings that all hooks of a node need. `socket` is the daemon's socket for hooks; None: its default path."""

    annotation_prefix: str
    socket: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the hook settings for hooks that ask a daemon with these settings."""
        socket = settings.hook_socket if settings.state_dir != Settings().state_dir else None
        return cls(annotation_prefix=settings.annotation_prefix, socket=socket)

    def words(self, verb: str) -> tuple[str, ...]:
        """Return the command-line arguments for the hook program. `verb` is the program's command, such as `prepare` or
        `return`."""
        prefix = ("--annotation-prefix", self.annotation_prefix) if verb != "return" else ()
        socket = ("--socket", str(self.socket)) if self.socket is not None else ()
        return (verb, *prefix, *socket)


def at(root: Path, path: Path) -> Path:
    """Return the absolute path `path`, moved below the folder `root`."""
    return root / path.relative_to("/")


def hook_files(root: Path, source: Path) -> tuple[OwnFile, OwnFile]:
    """Return the module and program of the hook for podman and Docker below `root`, in the order of writing. They are
    copies of `source` and of the module beside it. Raises OSError if these cannot be read."""
    return program_files(at(root, HOOK), source)


def program_files(program: Path, source: Path) -> tuple[OwnFile, OwnFile]:
    """Return a hook's module and program for the path `program`, in the order of writing. They are copies of `source`
    and of the module beside it. Raises OSError if these cannot be read."""
    module = source.with_name(f"{source.name.replace('-', '_')}.py")
    is_ours = partial(_is_ours, source.name)
    return (
        OwnFile(
            path=program.with_name(module.name),
            data=module.read_bytes(),
            is_ours=is_ours,
            mode=_MODULE_MODE,
            copy_of=module,
            is_module=True,
        ),
        OwnFile(path=program, data=source.read_bytes(), is_ours=is_ours, mode=PROGRAM_MODE, copy_of=source),
    )


def refuse_broken(program: Path) -> None:
    """Raise NriRdmaError if the hook for podman and Docker cannot run on this host, because then no container that asks
    would start."""
    from nri_rdma.host.engine_command import run
    from nri_rdma.host.hook_program import fault_with_interpreter

    if fault := fault_with_interpreter(program):
        what, hint = f"{fault}, so no container that asks would start", "install Python 3.9 or newer there"
        raise NriRdmaError(ErrorCode.INSTALL, what, where=str(program), hint=hint)
    run(str(program), "--help", timeout_s=_HELP_S)


def _is_ours(name: str, data: bytes) -> bool:
    """Return whether `data` is the program or module of the hook `name`, of any release."""
    module = name.replace("-", "_")
    return f'PROGRAM = "{name}"'.encode() in data or f"from {module} import main".encode() in data
